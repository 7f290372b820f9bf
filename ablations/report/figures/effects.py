"""Draws effects with their intervals, interactions and the steps of a ladder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ablations.outcomes import mark
from ablations.report.figures.style import (
    COLOURS,
    INK,
    REST,
    empty_figure,
    picture,
    plain,
    svg,
)
from ablations.results import Results
from ablations.stats import Comparison, Estimate

Row = tuple[str, float, float | None, float | None, str]  # name, value, low, high, colour


def _intervals(rows: Sequence[Row], margin: float, label: str) -> Any:
    """From the top down, each name above its interval."""
    figure, axes = empty_figure(0.75 + 0.4 * len(rows))
    if margin > 1e-9:
        axes.axvspan(-margin, margin, color=COLOURS[5], alpha=0.18, lw=0)
    axes.axvline(0, color=INK, lw=1, alpha=0.4)
    for row, (name, value, low, high, colour) in enumerate(rows[::-1]):
        if low is not None and high is not None:
            axes.plot([low, high], [row, row], color=colour, lw=2.5, solid_capstyle="butt")
        axes.plot(value, row, "o", color=colour, ms=6)
        axes.text(
            0.01,
            row + 0.22,
            plain(name, 80),
            transform=axes.get_yaxis_transform(),
            va="bottom",
            fontsize=8.5,
        )
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-0.5, len(rows) - 0.25)
    axes.set_xlabel(label)
    return figure


@picture
def forest(results: Results, compared: Comparison) -> str:
    """Each arm's difference from the baseline, with its interval and the margin within which it
    does not matter.
    """
    by_verdict = {"better": COLOURS[2], "worse": COLOURS[1], "equivalent": COLOURS[0]}
    effects = sorted(compared.effects, key=lambda effect: results.arms.index(effect.arm))
    rows = [
        (
            effect.arm + mark(effect.bad),
            effect.difference,
            effect.low,
            effect.high,
            by_verdict.get(effect.verdict, REST),
        )
        for effect in effects
        if effect.difference is not None
    ]
    figure = _intervals(
        rows,
        compared.margin,
        f"difference from {plain(compared.baseline, 24)} in {results.measure.unit}, with 95 %"
        f" intervals",
    )
    return svg(figure, "forest plot of the differences")


@picture
def estimates(found: Sequence[Estimate], margin: float, label: str) -> str:
    """Numbers with intervals: what is apart from 0 after Holm's correction in colour."""
    rows = [
        (
            one.name + mark(one.capped),
            one.value,
            one.low,
            one.high,
            COLOURS[0] if (one.p_holm or one.p) <= 0.05 else REST,
        )
        for one in found
    ]
    figure = _intervals(rows, margin, label)
    return svg(figure, label)


@picture
def interactions(
    pairs: Sequence[tuple[str, str, Mapping[tuple[str, str], float]]], metric: str
) -> str:
    """For each two factors, the mean of each two levels: lines that are not parallel are an
    interaction.
    """
    rows = math.ceil(len(pairs) / 2)
    figure, panels = empty_figure(2.7 * rows, nrows=rows, ncols=2, squeeze=False)
    for axes, (one, two, means) in zip(panels.flat, pairs, strict=False):
        levels = list(dict.fromkeys(level for level, _ in means))
        for number, other in enumerate(dict.fromkeys(other for _, other in means)):
            axes.plot(
                range(len(levels)),
                [means.get((level, other), np.nan) for level in levels],
                "-o",
                ms=4,
                color=COLOURS[number % len(COLOURS)],
                label=plain(other, 20),
            )
        axes.set_xticks(range(len(levels)), [plain(level, 14) for level in levels])
        axes.margins(x=0.25)
        axes.set_xlabel(plain(one, 24))
        axes.set_ylabel(plain(metric))
        axes.legend(title=plain(two, 24), title_fontsize=8)
    for axes in panels.flat[len(pairs) :]:
        axes.set_visible(False)
    return svg(figure, "interactions")


@picture
def steps(results: Results, rungs: Mapping[str, float], label: str) -> str:
    """What a ladder reached after each rung."""
    figure, axes = empty_figure(0.7 + 0.3 * len(rungs))
    names = list(rungs)[::-1]
    axes.plot([rungs[name] for name in names], range(len(names)), "-o", color=COLOURS[0])
    axes.axvline(rungs[results.baseline], color=INK, lw=1, ls=":")
    axes.set_yticks(
        range(len(names)), [plain(name, 28) + results.table.mark(name) for name in names]
    )
    axes.set_xlabel(label)
    return svg(figure, "what the ladder reached, rung by rung")
