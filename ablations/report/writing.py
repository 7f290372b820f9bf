"""Writes the report of a study or a sweep: on the terminal, as a page, as text, as tables."""

from __future__ import annotations

import csv
import io
import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich import table as printed
from rich.text import Text

from ablations.outcomes import MARK, Outcome, mark, shown, signed
from ablations.report import html, wording
from ablations.report.html import Picture, Section, Table
from ablations.results import Results, Run, budgets, load
from ablations.stats import Comparison, Effect
from zoo.errors import command
from zoo.metrics import unigram_nats
from zoo.utils import tables
from zoo.utils.files import write_atomically
from zoo.utils.progress import doing

SPARE = (
    "parameters",
    "± sd",
    "runs",
)  # of the arms on a screen, what goes first where there is no room
COMPARISON = (
    "arm",
    "n",
    "mean",
    "difference",
    "low",
    "high",
    "p",
    "p_holm",
    "verdict",
    "parameters",
    "flops",
    "equivalence_p",
    "percent",
    "needed",
    "diverged",
    "missing",
    "documents",
    "documents_low",
    "documents_high",
    "baseline_diverged",
    "note",
    "budget",
)
RUNS = (
    "arm",
    "seed",
    "status",
    "value",
    "counts_as",
    "parameters",
    "flops_per_token",
    "tokens",
    "seconds",
    "tokens_per_second",
    "peak_memory_bytes",
    "unigram_nats",
    "fingerprint",
    "git_sha",
    "folder",
    "command",
)


def write(folder: Path) -> tuple[Results, Comparison | None, list[str]]:
    """Read the runs below a folder, and put what they say beside them."""
    said = read(folder)
    _write(folder, *said)
    return said


def read(folder: Path) -> tuple[Results, Comparison | None, list[str]]:
    """The runs below a folder, their comparison where one can be made, and what a reader must know of both."""
    results = load(folder)
    compared, refused = wording.judged(results)
    return results, compared, refused + wording.remarks(results, compared)


def _write(
    folder: Path, results: Results, compared: Comparison | None, told: Sequence[str]
) -> None:
    from ablations.report import sections  # draws, and matplotlib is no part of starting a study

    below = sections.sections(results, compared)
    files = {
        "comparison.csv": _csv(COMPARISON, _arms(results, compared)),
        "runs.csv": _csv(
            RUNS, map(_row, results.runs, results.outcomes(), itertools.repeat(results.metric))
        ),
        "report.md": _markdown(results, compared, told, below),
        "table.tex": _latex(results, compared),
        "report.html": _html(results, compared, told, below),
    }
    for name, content in files.items():
        write_atomically(folder / name, content.encode())


def show(folder: Path) -> None:
    """Print what the runs say as soon as it is known, then write the report."""
    with doing("reading the runs"):
        said = read(folder)
    _print(*said)
    with doing("drawing the figures"):
        _write(folder, *said)
    tables.console().print(Text(f"The report is {folder / 'report.html'}"))


def _print(results: Results, compared: Comparison | None, told: Sequence[str]) -> None:
    console, title = tables.console(), Text(f"Arms of {results.folder}")
    table = printed.Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("arm", "runs", results.metric, "± sd", "difference", "parameters", "verdict"):
        table.add_column(
            column, justify="left" if column in ("arm", "runs", "verdict") else "right"
        )
    effects = {effect.arm: effect for effect in compared.effects} if compared else {}
    for arm in results.arms:
        effect, values = effects.get(arm), list(results.table.values.get(arm, {}).values())
        states = Counter(run.status for run in results.outcomes() if run.arm == arm)
        table.add_row(
            Text(arm),
            ", ".join(f"{number} {status}" for status, number in states.items()),
            _mean(results, arm),
            shown(statistics.stdev(values) if len(values) > 1 else None),
            _difference(effect, ""),
            _count(results.of(arm), "parameters"),
            effect.verdict if effect else "baseline" if arm == results.baseline else "",
        )
    tables.show(table, console, SPARE)
    for _, sentence in _sentences(results, compared):
        console.print(Text(f"  {sentence}"))
    for line in told:
        console.print(Text(f"  · {line}", style="dim"))


def _sentences(results: Results, compared: Comparison | None) -> list[tuple[str, str]]:
    if compared is None:
        return []
    order = {arm: number for number, arm in enumerate(results.arms)}
    effects = sorted(compared.effects, key=lambda effect: order[effect.arm])
    return [
        (
            effect.verdict,
            " ".join(
                filter(
                    None,
                    (
                        wording.sentence(effect, compared, results.metric),
                        budgets.remark(results, effect.arm),
                    ),
                )
            ),
        )
        for effect in effects
    ]


def _mean(results: Results, arm: str) -> str:
    """An arm's mean as it is shown everywhere, marked where it has runs that learned nothing."""
    return shown(results.table.mean(arm)) + results.table.mark(arm)


def _difference(effect: Effect | None, nothing: str = "–") -> str:
    if effect is None or effect.difference is None:
        return nothing
    return signed(effect.difference) + mark(effect.bad)


def _arms(results: Results, compared: Comparison | None) -> Iterable[Sequence[Any]]:
    effects = {effect.arm: effect for effect in compared.effects} if compared else {}
    table, there = results.table, len(results.table.bad.get(results.baseline, ()))
    for arm in results.arms:
        runs, mean, bad = results.of(arm), table.mean(arm), len(table.bad[arm])
        sizes = [_first(runs, key) for key in ("parameters", "flops_per_token")]
        note = table.note if bad or there else None
        if effect := effects.get(arm):
            yield (
                arm,
                effect.n,
                mean,
                effect.difference,
                effect.low,
                effect.high,
                effect.p,
                effect.p_holm,
                effect.verdict,
                *sizes,
                effect.equivalence_p,
                effect.percent,
                effect.needed,
                bad,
                effect.missing,
                effect.documents,
                effect.documents_low,
                effect.documents_high,
                there,
                note,
                budgets.remark(results, arm),
            )
        else:
            ended = sum(run.ended for run in results.outcomes() if run.arm == arm)
            verdict = "baseline" if compared is not None and arm == results.baseline else None
            yield (
                arm,
                ended,
                mean,
                *[None] * 5,
                verdict,
                *sizes,
                *[None] * 3,
                bad,
                len(runs) - ended,
                *[None] * 3,
                there,
                note,
                None,
            )


def _row(run: Run, outcome: Outcome, metric: str) -> Sequence[Any]:
    told = [run.summary.get(key) for key in RUNS[5:11]]
    told += [
        unigram_nats(run.summary),
        (run.summary.get("data") or {}).get("fingerprint"),
        run.summary.get("git_sha"),
    ]
    counts_as = outcome.value if outcome.ended else None
    return (
        run.arm,
        run.seed,
        outcome.status,
        run.value(metric),
        counts_as,
        *told,
        run.folder,
        _command(run),
    )


def _command(run: Run) -> str:
    return command("zoo.train", *run.words)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    return file.getvalue()


SHOWN = (
    "arm",
    "seeds",
    "mean",
    "difference",
    "95 % interval",
    "%",
    "p (Holm)",
    "p (equivalence)",
    "diverged",
    "verdict",
    "95 % over documents and seeds",
    "parameters",
    "FLOPs a token",
)


def _columns(results: Results) -> list[str]:
    """The table's heads, with the unit of the study's metric."""
    named = {"mean": f"mean {results.metric}", "difference": f"difference ({results.measure.unit})"}
    return [named.get(column, column) for column in SHOWN]


def _shown(results: Results, compared: Comparison | None) -> list[list[str]]:
    """The table of the arms, for people."""
    effects = {effect.arm: effect for effect in compared.effects} if compared else {}
    rows = []
    for arm in results.arms:
        runs, effect = results.of(arm), effects.get(arm)
        sizes = [_count(runs, "parameters"), _count(runs, "flops_per_token")]
        if effect is None:
            ended, bad = (
                sum(run.ended for run in results.outcomes() if run.arm == arm),
                len(results.table.bad[arm]),
            )
            rows.append(
                [
                    arm,
                    str(ended),
                    _mean(results, arm),
                    *["–"] * 5,
                    f"{bad}/{ended}",
                    "baseline" if compared and arm == results.baseline else "–",
                    "–",
                    *sizes,
                ]
            )
            continue
        ends, over = (
            " … ".join(signed(end) for end in both if end is not None) or "–"
            for both in ((effect.low, effect.high), (effect.documents_low, effect.documents_high))
        )
        rows.append(
            [
                arm,
                str(effect.n),
                _mean(results, arm),
                _difference(effect),
                ends,
                "–" if effect.percent is None else f"{effect.percent:+.2f}".replace("-", "−"),
                *map(wording.p_value, (effect.p_holm, effect.equivalence_p)),
                f"{effect.diverged}/{effect.runs}",
                effect.verdict,
                over,
                *sizes,
            ]
        )
    return rows


def _first(runs: Sequence[Run], key: str) -> Any:
    return next((run.summary[key] for run in runs if run.summary.get(key) is not None), None)


def _count(runs: Sequence[Run], key: str) -> str:
    found = _first(runs, key)
    return f"{found:,}" if isinstance(found, int) else "–"


def _markdown(
    results: Results, compared: Comparison | None, told: Sequence[str], below: Sequence[Section]
) -> str:
    lines = [f"# {_title(results)}", "", results.study.get("question", ""), ""]
    lines += [f"- {sentence}" for _, sentence in _sentences(results, compared)]
    lines += [
        "",
        *_text_table(_columns(results), _shown(results, compared)),
        "",
        *(f"- {line}" for line in told),
        "",
    ]
    for section in below:
        parts = [part for part in section.parts if not isinstance(part, Picture)]
        if parts in (
            [],
            [results.table.note],
        ):  # nothing but pictures, and what a mark in them stands for
            continue
        for part in [f"## {section.title}", *parts]:
            lines += [
                *([part] if isinstance(part, str) else _text_table(part.columns, part.rows)),
                "",
            ]
    return "\n".join([*lines, *_provenance(results)]) + "\n"


def _text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [
        columns,
        ["---"] * len(columns),
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return [f"| {' | '.join(row)} |" for row in cells]


def _latex(results: Results, compared: Comparison | None) -> str:
    """A tabular of the arms for a paper, in booktabs' rules, with what must be said beside it below the last one."""
    keep = [0, 1, 2, 3, 4, 6, 9]
    rows = [
        [row[column] for column in keep] for row in [_columns(results), *_shown(results, compared)]
    ]
    body = [" & ".join(map(_tex, row)) + r" \\" for row in rows]
    said = {arm: budgets.remark(results, arm) for arm in results.arms if arm != results.baseline}
    notes = [
        *filter(None, [results.table.note]),
        *(f"{arm}: {remark}" for arm, remark in said.items() if remark),
        *(wording.doubts(compared) if compared else []),
        *wording.warnings(results, compared),
        *wording.integrity(results),
    ]
    below = [
        rf"\multicolumn{{{len(keep)}}}{{p{{\linewidth}}}}{{\footnotesize {_tex(note)}}} \\"
        for note in notes
    ]
    return (
        "\n".join(
            [
                r"\begin{tabular}{l" + "r" * (len(keep) - 2) + "l}",
                r"\toprule",
                body[0],
                r"\midrule",
                *body[1:],
                r"\bottomrule",
                *below,
                r"\end{tabular}",
            ]
        )
        + "\n"
    )


def _tex(cell: str) -> str:
    special = {
        "\\": r"\textbackslash{}",
        "−": "$-$",
        "…": r"\dots",
        "–": "--",
        "<": "$<$",
        MARK: r"\dag{}",
        "→": r"$\to$",
        "×": r"$\times$",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    }
    return "".join(special.get(mark, mark) for mark in cell)


def _title(results: Results) -> str:
    return f"Study {results.study['name']}" if results.study else f"Runs of {results.folder.name}"


def _html(
    results: Results, compared: Comparison | None, told: Sequence[str], below: Sequence[Section]
) -> str:
    from ablations.report import figures

    parts = [
        html.heading(_title(results), str(results.study.get("question", ""))),
        html.conclusions(_sentences(results, compared)),
    ]
    if compared and any(effect.difference is not None for effect in compared.effects):
        parts.append(figures.forest(results, compared))
    arms = Section("The arms", [Table(_columns(results), _shown(results, compared))])
    parts += [html.remarks(told), *map(html.section, [arms, *below])]
    runs = [
        [
            run.arm,
            str(run.seed),
            outcome.status,
            shown(run.value(results.metric)),
            shown(outcome.value if outcome.ended else None) + mark(outcome.bad),
            str(run.summary.get("error") or ""),
            _command(run),
        ]
        for run, outcome in zip(results.runs, results.outcomes(), strict=True)
    ]
    parts.append(
        html.hidden(
            f"All {len(runs)} runs, and the line that makes each again",
            html.table(
                Table(
                    ("arm", "seed", "status", results.metric, "counts as", "error", "command"), runs
                )
            ),
        )
    )
    if results.plan:
        parts.append(
            html.hidden(
                "The specification, fixed before the first run",
                html.text(yaml.safe_dump(results.plan, allow_unicode=True, sort_keys=False)),
            )
        )
    parts.append("<footer>" + "<br>".join(map(html.escape, _provenance(results))) + "</footer>")
    return html.page(_title(results), parts)


def _provenance(results: Results) -> list[str]:
    """Of what code, packages and data this is."""
    summary = next((run.summary for run in results.runs if run.summary.get("versions")), {})
    data = summary.get("data") or {}
    versions = ", ".join(
        f"{name} {version}" for name, version in (summary.get("versions") or {}).items()
    )
    lines = [f"hash of the specification {results.plan['hash']}"] if results.plan else []
    lines += [
        f"data {str(data.get('fingerprint', '?'))[:12]}, {data.get('documents') or '?'} documents",
        f"code {str(summary.get('git_sha') or '?')[:12]}; {versions or 'versions unknown'}",
    ]
    return lines
