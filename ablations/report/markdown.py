"""Writes report.md: the conclusions, the table of the arms and the sections as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ablations.report.arms import arm_columns, arm_rows, provenance, sentences, title
from ablations.report.html import Picture, Section
from ablations.results import Results
from ablations.stats import Comparison


def markdown_text(
    results: Results, compared: Comparison | None, told: Sequence[str], below: Sequence[Section]
) -> str:
    lines = [f"# {title(results)}", "", results.study.get("question", ""), ""]
    lines += [f"- {sentence}" for _, sentence in sentences(results, compared)]
    lines += [
        "",
        *markdown_table(arm_columns(results), arm_rows(results, compared)),
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
                *([part] if isinstance(part, str) else markdown_table(part.columns, part.rows)),
                "",
            ]
    return "\n".join([*lines, *provenance(results)]) + "\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [
        columns,
        ["---"] * len(columns),
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return [f"| {' | '.join(row)} |" for row in cells]
