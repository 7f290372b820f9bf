"""The sections of a report below its first screen, as sentences, tables and pictures for page and
text.

A section that these runs have nothing for is left out; a number that they do not allow is a dash,
or a sentence why.
"""

from __future__ import annotations

from dataclasses import replace

from ablations.outcomes import MARK
from ablations.report.html import Part, Picture, Section
from ablations.report.sections.cost import cost
from ablations.report.sections.curves import divergence, positions, training
from ablations.report.sections.documents import documents
from ablations.report.sections.factorial import factorial
from ablations.report.sections.ladder import ladder
from ablations.report.sections.tuning import tuning
from ablations.results import Results
from ablations.stats import Comparison

__all__ = [
    "cost",
    "divergence",
    "documents",
    "factorial",
    "ladder",
    "positions",
    "sections",
    "training",
    "tuning",
]


def sections(results: Results, compared: Comparison | None) -> list[Section]:
    """All that these runs have something for, in the order of the report."""
    found = [training(results)]
    if compared is not None:
        found.append(factorial(results, compared))
        found.append(ladder(results, compared))
        found.append(documents(results, compared))
    found.append(cost(results, compared))
    found.append(tuning(results))
    found.append(divergence(results, compared))
    found.append(positions(results))
    return [_with_note(section, results.table.note) for section in found if section is not None]


def _with_note(section: Section, note: str | None) -> Section:
    """Add the footnote on runs that learned nothing to a section in which something has its
    mark.
    """
    if note and any(MARK in _text(part) for part in section.parts):
        return replace(section, parts=[*section.parts, note])
    return section


def _text(part: Part) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Picture):
        return part.svg
    return "".join(cell for row in part.rows for cell in row)
