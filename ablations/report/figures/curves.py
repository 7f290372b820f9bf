"""Draws what is measured over steps, positions, trials and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ablations.report.figures.style import (
    INK,
    REST,
    axis,
    colours,
    empty_figure,
    legend,
    picture,
    svg,
)
from ablations.results import Results
from ablations.stats import Array
from zoo import metrics
from zoo.tracking.status import FAILED


@picture
def curves(results: Results) -> str:
    """Draw each arm's evaluations over the steps: mean and one standard deviation over seeds; thin,
    the training loss.
    """
    figure, axes = empty_figure(3.3)
    named, after = colours(results), []
    loss = results.metric == "val/loss"  # what is trained on is in the same unit
    for arm in sorted(results.arms, key=lambda arm: arm in named):
        runs = [run for run in results.of(arm) if run.status != FAILED]
        steps, mean, spread = over_seeds([run.curve(results.metric) for run in runs])
        colour = named.get(arm, REST)
        if len(steps):
            axes.plot(steps, mean, "-o", ms=3, color=colour, zorder=3 if arm in named else 1)
            after.append(mean[len(mean) // 2 :])
        if arm not in named:
            continue
        axes.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.18, lw=0)
        steps, mean, _ = over_seeds([run.curve("train/loss") for run in runs] if loss else [])
        if len(steps):
            axes.plot(steps, smooth(mean), lw=0.8, color=colour, alpha=0.8, zorder=2)
            after.append(smooth(mean)[len(mean) // 8 :])
    if after:  # the first steps and a run that explodes would leave no room for what differs
        low = min(values.min() for values in after)
        high = np.quantile([values.max() for values in after], 0.8)
        space = 0.05 * (high - low or 1)
        axes.set_ylim(low - space, high + space)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel(axis(results))
    legend(figure, results, named)
    return svg(figure, "training curves")


def over_seeds(runs: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Steps, mean and standard deviation of several runs' values, at each step at which all of them
    have a finite one.

    Of those that are left where some have diverged, a mean would fall as the worst leave it.
    """
    known = [run for run in runs if len(run)]
    every = np.concatenate([np.empty((0, 2)), *known])
    every = every[np.isfinite(every).all(1)]
    steps, at, number = np.unique(every[:, 0], return_inverse=True, return_counts=True)
    mean = np.bincount(at, every[:, 1], len(steps)) / number
    spread = np.sqrt(np.bincount(at, (every[:, 1] - mean[at]) ** 2, len(steps)) / number)
    whole = number == len(known)
    return steps[whole], mean[whole], spread[whole]


def smooth(values: Array) -> Array:
    """The mean over about a thirtieth of the values, fewer at the ends."""
    half = len(values) // 60
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(values))
    return np.asarray((sums[high] - sums[low]) / (high - low))


@picture
def cost(results: Results, keys: Sequence[tuple[str, str]]) -> str:
    """What each run reached against what it cost, of each (key of the summary, name) that differs
    between runs.
    """
    every = {name: _costs(results, key) for key, name in keys}
    known = {name: points for name, points in every.items() if points}
    if not known:
        return ""
    figure, panels = empty_figure(2.6 * len(known) + 0.3, nrows=len(known), squeeze=False)
    named = colours(results)
    for axes, (name, points) in zip(panels[:, 0], known.items(), strict=True):
        points.sort(key=lambda point: point[0] in named)
        arms, x, y = zip(*points, strict=True)
        axes.scatter(x, y, 16, [named.get(arm, REST) for arm in arms], alpha=0.8, lw=0)
        axes.set_xlabel(name)
        axes.set_ylabel(axis(results))
    legend(figure, results, named)
    return svg(figure, "cost against quality")


def _costs(results: Results, key: str) -> list[tuple[str, float, float]]:
    """(arm, cost, what it counts as) of each run; nothing where all cost the same, as a column of
    points says nothing.
    """
    points = []
    for run, outcome in zip(results.runs, results.outcomes(), strict=True):
        spent = metrics.number(run.summary.get(key))
        if spent is not None and outcome.ended and outcome.value is not None:
            points.append((run.arm, spent, outcome.value))
    return points if len({x for _, x, _ in points}) > 1 else []


@picture
def positions(results: Results, losses: Mapping[str, Array], trained: int | None) -> str:
    """The loss at each position of a block, the mean over an arm's seeds, smoothed over eight
    positions.
    """
    figure, axes = empty_figure(3.2)
    named = colours(results)
    for arm, values in sorted(losses.items(), key=lambda item: item[0] in named):
        width = min(8, len(values))
        mean = np.convolve(values, np.ones(width) / width, mode="valid")
        axes.plot(
            np.arange(len(mean)) + width / 2,
            mean,
            color=named.get(arm, REST),
            zorder=2 if arm in named else 1,
        )
    if trained:
        axes.axvline(trained, color=INK, lw=1, ls=":")
    note = " (dotted: the length trained on)" if trained else ""
    axes.set_xlabel(f"position in the block{note}")
    axes.set_ylabel("val/loss (nats per token)")
    legend(figure, results, named)
    return svg(figure, "loss by position")


@picture
def trials(results: Results, best: Mapping[str, Array]) -> str:
    """The best that is to be expected of so many trials, of each arm (Dodge et al. 2019)."""
    figure, axes = empty_figure(3.2)
    named = colours(results)
    for arm, values in sorted(best.items(), key=lambda item: item[0] in named):
        axes.plot(
            range(1, len(values) + 1),
            values,
            "-o",
            ms=3,
            color=named.get(arm, REST),
            zorder=2 if arm in named else 1,
        )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("trials")
    axes.set_ylabel(f"expected best {axis(results)}")
    legend(figure, results, named, marked=False)
    return svg(figure, "expected best against trials")
