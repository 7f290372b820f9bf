"""Writes the report of a study or a sweep: on the terminal, as a page, as text, as tables."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich import table as printed
from rich.text import Text

from ablations.outcomes import shown
from ablations.report import wording
from ablations.report.arms import count, marked_difference, marked_mean, sentences
from ablations.report.csv_files import COMPARISON, RUNS, comparison_rows, csv_text, run_row
from ablations.report.latex import latex_table
from ablations.report.markdown import markdown_text
from ablations.results import Results, judging, load
from ablations.stats import Comparison
from zoo.utils import tables
from zoo.utils.files import write_atomically
from zoo.utils.progress import doing

SPARE = (
    "parameters",
    "± sd",
    "runs",
)  # of the arms on a screen, what goes first where there is no room


def write(folder: Path) -> tuple[Results, Comparison | None, list[str]]:
    """Read the runs below a folder, and put what they say beside them."""
    said = read(folder)
    _write(folder, *said)
    return said


def read(folder: Path) -> tuple[Results, Comparison | None, list[str]]:
    """The runs below a folder, their comparison where one can be made, and what a reader must know
    of both.
    """
    results = load(folder)
    compared, refused = judging.judged(results)
    return results, compared, refused + wording.remarks(results, compared)


def _write(
    folder: Path, results: Results, compared: Comparison | None, told: Sequence[str]
) -> None:
    from ablations.report import (  # draw, and matplotlib is no part of starting a study
        page,
        sections,
    )

    below = sections.sections(results, compared)
    files = {
        "comparison.csv": csv_text(COMPARISON, comparison_rows(results, compared)),
        "runs.csv": csv_text(
            RUNS, map(run_row, results.runs, results.outcomes(), itertools.repeat(results.metric))
        ),
        "report.md": markdown_text(results, compared, told, below),
        "table.tex": latex_table(results, compared),
        "report.html": page.page_html(results, compared, told, below),
    }
    for name, content in files.items():
        write_atomically(folder / name, content.encode())


def show(folder: Path) -> None:
    """Print what the runs say as soon as it is known, then write the report."""
    with doing("reading the runs"):
        said = read(folder)
    print_arms(*said)
    with doing("drawing the figures"):
        _write(folder, *said)
    tables.console().print(Text(f"The report is {folder / 'report.html'}"))


def print_arms(results: Results, compared: Comparison | None, told: Sequence[str]) -> None:
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
            marked_mean(results, arm),
            shown(statistics.stdev(values) if len(values) > 1 else None),
            marked_difference(effect, ""),
            count(results.of(arm), "parameters"),
            effect.verdict if effect else "baseline" if arm == results.baseline else "",
        )
    tables.show(table, console, SPARE)
    for _, sentence in sentences(results, compared):
        console.print(Text(f"  {sentence}"))
    for line in told:
        console.print(Text(f"  · {line}", style="dim"))
