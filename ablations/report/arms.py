"""The table of the arms and their sentences, as people read them on a page, in text and in a
paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ablations.outcomes import mark, shown, signed
from ablations.report import wording
from ablations.results import Results, Run, budgets
from ablations.stats import Comparison, Effect


def sentences(results: Results, compared: Comparison | None) -> list[tuple[str, str]]:
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


def marked_mean(results: Results, arm: str) -> str:
    """An arm's mean as it is shown everywhere, marked where it has runs that learned nothing."""
    return shown(results.table.mean(arm)) + results.table.mark(arm)


def marked_difference(effect: Effect | None, nothing: str = "–") -> str:
    if effect is None or effect.difference is None:
        return nothing
    return signed(effect.difference) + mark(effect.bad)


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
    "FLOPs per token",
)


def arm_columns(results: Results) -> list[str]:
    """The table's heads, with the unit of the study's metric."""
    named = {"mean": f"mean {results.metric}", "difference": f"difference ({results.measure.unit})"}
    return [named.get(column, column) for column in SHOWN]


def arm_rows(results: Results, compared: Comparison | None) -> list[list[str]]:
    """The table of the arms, for people."""
    effects = {effect.arm: effect for effect in compared.effects} if compared else {}
    rows = []
    for arm in results.arms:
        runs, effect = results.of(arm), effects.get(arm)
        sizes = [count(runs, "parameters"), count(runs, "flops_per_token")]
        if effect is None:
            ended, bad = (
                sum(run.ended for run in results.outcomes() if run.arm == arm),
                len(results.table.bad[arm]),
            )
            rows.append(
                [
                    arm,
                    str(ended),
                    marked_mean(results, arm),
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
                marked_mean(results, arm),
                marked_difference(effect),
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


def first_known(runs: Sequence[Run], key: str) -> Any:
    return next((run.summary[key] for run in runs if run.summary.get(key) is not None), None)


def count(runs: Sequence[Run], key: str) -> str:
    found = first_known(runs, key)
    return f"{found:,}" if isinstance(found, int) else "–"


def title(results: Results) -> str:
    return f"Study {results.study['name']}" if results.study else f"Runs of {results.folder.name}"


def provenance(results: Results) -> list[str]:
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
