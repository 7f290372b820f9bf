"""The figures of a report, as SVG elements of its page."""

from ablations.report.figures.curves import cost, curves, over_seeds, positions, smooth, trials
from ablations.report.figures.effects import estimates, forest, interactions, steps
from ablations.report.figures.style import COLOURS, REST, axis, colours, plain

__all__ = [
    "COLOURS",
    "REST",
    "axis",
    "colours",
    "cost",
    "curves",
    "estimates",
    "forest",
    "interactions",
    "over_seeds",
    "plain",
    "positions",
    "smooth",
    "steps",
    "trials",
]
