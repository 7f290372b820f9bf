"""Puts report.html together: conclusions, forest plot, sections, runs, specification."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from ablations.outcomes import mark, shown
from ablations.report import figures, html
from ablations.report.arms import arm_columns, arm_rows, provenance, sentences, title
from ablations.report.csv_files import run_command
from ablations.report.html import Section, Table
from ablations.results import Results
from ablations.stats import Comparison


def page_html(
    results: Results, compared: Comparison | None, told: Sequence[str], below: Sequence[Section]
) -> str:
    parts = [
        html.heading(title(results), str(results.study.get("question", ""))),
        html.conclusions(sentences(results, compared)),
    ]
    if compared and any(effect.difference is not None for effect in compared.effects):
        parts.append(figures.forest(results, compared))
    arms = Section("The arms", [Table(arm_columns(results), arm_rows(results, compared))])
    parts += [html.remarks(told), *map(html.section, [arms, *below])]
    runs = [
        [
            run.arm,
            str(run.seed),
            outcome.status,
            shown(run.value(results.metric)),
            shown(outcome.value if outcome.ended else None) + mark(outcome.bad),
            str(run.summary.get("error") or ""),
            run_command(run),
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
    parts.append("<footer>" + "<br>".join(map(html.escape, provenance(results))) + "</footer>")
    return html.page(title(results), parts)
