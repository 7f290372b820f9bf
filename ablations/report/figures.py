"""The pictures of a report, as SVG that takes the colours of the page around it."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ablations.outcomes import mark
from ablations.results import Results
from ablations.stats import Array, Comparison, Estimate
from zoo import metrics
from zoo.tracking.status import FAILED

INK = "#010203"  # stands for the page's own text colour
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#8c6d31",
    "#999999",
)  # Okabe & Ito 2008
REST = COLOURS[-1]  # of the arms that no colour is left for
STYLE: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "zoo",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "font.family": "sans-serif",
    "legend.frameon": False,
    "legend.fontsize": 8,
}
WIDTH = 5.6  # inches, so that letters can still be read on a phone
LETTERS = 64  # of a name


def _picture(draw: Callable[..., str]) -> Callable[..., str]:
    """In the style of the page from the first line to the last letter of a legend, and of no other figure."""

    @wraps(draw)
    def styled(*given: Any) -> str:
        matplotlib.use("svg")
        with matplotlib.rc_context(STYLE):
            return draw(*given)

    return styled


def _figure(height: float, **grid: Any) -> tuple[Any, Any]:
    figure = Figure((WIDTH, height), layout="constrained")
    return figure, figure.subplots(**grid)


def _svg(figure: Any, about: str) -> str:
    """The figure as an element of a page, which a reader that cannot see it is told of."""
    file = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from font"
        )  # whoever shows the page has fonts of their own
        figure.savefig(
            file, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    text = re.sub(r"^.*?(?=<svg)", "", file.getvalue(), flags=re.DOTALL).replace(
        INK, "currentColor"
    )
    return re.sub("<svg ", f'<svg role="img" aria-label="{escape(about)}" ', text, count=1)


def plain(text: str, letters: int = LETTERS) -> str:
    """A name as matplotlib shows it: without taking $ for mathematics, its middle left out where it is long."""
    short = (
        text
        if len(text) <= letters
        else f"{text[: letters // 2]}…{text[1 - (letters - letters // 2) :]}"
    )
    return short.replace("$", r"\$")


def colours(results: Results) -> dict[str, str]:
    """One for each arm; where there are more than can be told apart, for the baseline and the best."""
    reached = {arm: mean for arm in results.arms if (mean := results.table.mean(arm)) is not None}
    best = sorted(
        reached, key=lambda arm: reached[arm] if results.measure.lower_is_better else -reached[arm]
    )
    told = list(
        dict.fromkeys(
            [results.baseline, *(best if len(results.arms) > len(COLOURS) else results.arms)]
        )
    )
    return dict(
        zip(told, COLOURS[: len(COLOURS) - (len(results.arms) > len(COLOURS))], strict=False)
    )


def axis(results: Results) -> str:
    """The study's metric with its unit."""
    return plain(f"{results.metric} ({results.measure.unit})")


Row = tuple[str, float, float | None, float | None, str]  # name, value, low, high, colour


def _intervals(rows: Sequence[Row], margin: float, label: str) -> Any:
    """From the top down, each name above its interval."""
    figure, axes = _figure(0.75 + 0.4 * len(rows))
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


@_picture
def forest(results: Results, compared: Comparison) -> str:
    """Each arm's difference from the baseline, with its interval and the margin within which it does not matter."""
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
        f"difference from {plain(compared.baseline, 24)} in {results.measure.unit}, with 95 % intervals",
    )
    return _svg(figure, "forest plot of the differences")


@_picture
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
    return _svg(figure, label)


@_picture
def curves(results: Results) -> str:
    """The evaluations of each arm as training goes on, the mean over seeds and one standard deviation about it, and thin the
    loss of training."""
    figure, axes = _figure(3.3)
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
        low, high = (
            min(each.min() for each in after),
            np.quantile([each.max() for each in after], 0.8),
        )
        axes.set_ylim(low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1))
    axes.set_xlabel("optimiser step")
    axes.set_ylabel(axis(results))
    _legend(figure, results, named)
    return _svg(figure, "curves of training")


def over_seeds(runs: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Steps, mean and standard deviation of several runs' values, at each step at which all of them have a finite one.

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


@_picture
def cost(results: Results, keys: Sequence[tuple[str, str]]) -> str:
    """What each run reached against what it cost, of each (key of the summary, name) that differs between runs."""
    known = {name: points for key, name in keys if (points := _costs(results, key))}
    if not known:
        return ""
    figure, panels = _figure(2.6 * len(known) + 0.3, nrows=len(known), squeeze=False)
    named = colours(results)
    for axes, (name, points) in zip(panels[:, 0], known.items(), strict=True):
        points.sort(key=lambda point: point[0] in named)
        arms, x, y = zip(*points, strict=True)
        axes.scatter(x, y, 16, [named.get(arm, REST) for arm in arms], alpha=0.8, lw=0)
        axes.set_xlabel(name)
        axes.set_ylabel(axis(results))
    _legend(figure, results, named)
    return _svg(figure, "cost against quality")


def _costs(results: Results, key: str) -> list[tuple[str, float, float]]:
    """(arm, cost, what it counts as) of each run; nothing where all cost the same, as a column of points says nothing."""
    points = [
        (run.arm, x, outcome.value)
        for run, outcome in zip(results.runs, results.outcomes(), strict=True)
        if (x := metrics.number(run.summary.get(key))) is not None
        and outcome.ended
        and outcome.value is not None
    ]
    return points if len({x for _, x, _ in points}) > 1 else []


@_picture
def positions(results: Results, losses: Mapping[str, Array], trained: int | None) -> str:
    """The loss at each position of a block, the mean over an arm's seeds, smoothed over eight positions."""
    figure, axes = _figure(3.2)
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
    axes.set_xlabel(
        "position in the block" + (" (dotted: the length trained on)" if trained else "")
    )
    axes.set_ylabel("val/loss (nats per token)")
    _legend(figure, results, named)
    return _svg(figure, "loss by position")


@_picture
def interactions(
    pairs: Sequence[tuple[str, str, Mapping[tuple[str, str], float]]], metric: str
) -> str:
    """For each two factors, the mean of each two levels: lines that are not parallel are an interaction."""
    figure, panels = _figure(
        2.7 * -(-len(pairs) // 2), nrows=-(-len(pairs) // 2), ncols=2, squeeze=False
    )
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
    return _svg(figure, "interactions")


@_picture
def steps(results: Results, rungs: Mapping[str, float], label: str) -> str:
    """What a ladder reached after each rung."""
    figure, axes = _figure(0.7 + 0.3 * len(rungs))
    names = list(rungs)[::-1]
    axes.plot([rungs[name] for name in names], range(len(names)), "-o", color=COLOURS[0])
    axes.axvline(rungs[results.baseline], color=INK, lw=1, ls=":")
    axes.set_yticks(
        range(len(names)), [plain(name, 28) + results.table.mark(name) for name in names]
    )
    axes.set_xlabel(label)
    return _svg(figure, "what the ladder reached, rung by rung")


@_picture
def trials(results: Results, best: Mapping[str, Array]) -> str:
    """The best that is to be expected of so many trials, of each arm (Dodge et al. 2019)."""
    figure, axes = _figure(3.2)
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
    _legend(figure, results, named, marked=False)
    return _svg(figure, "expected best against trials")


def _legend(figure: Any, results: Results, named: Mapping[str, str], marked: bool = True) -> None:
    """Below the picture, where names of any length take no room from it; marked where it is of the runs that count."""
    from matplotlib.lines import Line2D

    rest = len(results.arms) - len(named)
    entries = [
        *(
            (plain(arm) + (results.table.mark(arm) if marked else ""), colour)
            for arm, colour in named.items()
        ),
        *([(f"{rest} other arms", REST)] if rest else []),
    ]
    longest = max(len(name) for name, _ in entries)
    figure.legend(
        [Line2D([], [], color=colour, lw=2) for _, colour in entries],
        [name for name, _ in entries],
        loc="outside lower center",
        ncols=max(1, min(4, 90 // (longest + 6))),
    )
