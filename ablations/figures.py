"""The pictures of a report, as SVG that takes the colours of the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ablations.results import Results
from ablations.stats import Comparison

INK = "#010203"  # stands for the page's own text colour
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#999999")  # Okabe & Ito 2008


def _figure(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"axes.edgecolor": INK, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK,
                                "ytick.color": INK, "svg.fonttype": "none", "axes.spines.top": False,
                                "axes.spines.right": False, "font.size": 10, "font.family": "sans-serif"}):
        figure = Figure((width, height), layout="constrained")
        return figure, figure.add_subplot()


def _svg(figure: Any, about: str) -> str:
    """The figure as an element of a page, which a reader that cannot see it is told of."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "zoo"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = re.sub(r"^.*?(?=<svg)", "", file.getvalue(), flags=re.DOTALL).replace(INK, "currentColor")
    return re.sub("<svg ", f'<svg role="img" aria-label="{about}" ', text, count=1)


def plain(text: str) -> str:
    """A name as matplotlib shows it, without taking $ for mathematics."""
    return text.replace("$", r"\$")


def forest(compared: Comparison, unit: str) -> str:
    """Each arm's difference from the baseline, with its interval and the margin within which it does not matter."""
    effects = [effect for effect in compared.effects if effect.difference is not None][::-1]
    figure, axes = _figure(7.5, 1.1 + 0.42 * max(1, len(effects)))
    if compared.margin > 1e-9:
        axes.axvspan(-compared.margin, compared.margin, color=COLOURS[5], alpha=0.18, lw=0)
    axes.axvline(0, color=INK, lw=1)
    colours = {"better": COLOURS[2], "worse": COLOURS[1], "equivalent": COLOURS[0]}
    for row, effect in enumerate(effects):
        colour = colours.get(effect.verdict, COLOURS[7])
        if effect.low is not None and effect.high is not None:
            axes.plot([effect.low, effect.high], [row, row], color=colour, lw=2.5, solid_capstyle="butt")
        axes.plot(effect.difference, row, "o", color=colour, ms=7)
    axes.set_yticks(range(len(effects)), [plain(effect.arm) for effect in effects])
    axes.set_ylim(-0.6, max(len(effects), 1) - 0.4)
    axes.set_xlabel(f"difference from {plain(compared.baseline)} in {unit}, with intervals of 95 %")
    return _svg(figure, "forest plot of the differences")


def curves(results: Results) -> str:
    """The evaluations of each arm as training goes on: the mean over seeds, and one standard deviation about it."""
    figure, axes = _figure(7.5, 4.2)
    for number, arm in enumerate(results.arms):
        runs = [dict(run.curve(results.metric)) for run in results.of(arm)]
        steps = sorted({step for run in runs for step in run})
        values = [[run[step] for run in runs if step in run] for step in steps]
        if not steps:
            continue
        mean, spread = np.array([np.mean(each) for each in values]), np.array([np.std(each) for each in values])
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(steps, mean, "-o", ms=3, color=colour, label=plain(arm))
        axes.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.18, lw=0)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel(plain(results.metric))
    _legend(axes)
    return _svg(figure, "curves of training")


def cost(results: Results, key: str, name: str) -> str:
    """What each run reached against what it cost."""
    figure, axes = _figure(7.5, 3.8)
    for number, arm in enumerate(results.arms):
        points = [(run.summary.get(key), run.value(results.metric)) for run in results.of(arm)]
        known = [(float(x), y) for x, y in points if isinstance(x, int | float) and y is not None]
        if known:
            axes.plot(*zip(*known, strict=True), "o", color=COLOURS[number % len(COLOURS)], label=plain(arm), alpha=0.8)
    axes.set_xlabel(name)
    axes.set_ylabel(plain(results.metric))
    _legend(axes)
    return _svg(figure, f"{name} against quality")


def positions(named: Sequence[tuple[str, Any]], trained: int | None) -> str:
    """The loss at each position of a block, the mean over an arm's seeds, smoothed over eight positions."""
    figure, axes = _figure(7.5, 4.0)
    for number, (arm, losses) in enumerate(named):
        width = min(8, len(losses))
        smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
        axes.plot(np.arange(len(smooth)) + width / 2, smooth, color=COLOURS[number % len(COLOURS)], label=plain(arm))
    if trained:
        axes.axvline(trained, color=INK, lw=1, ls=":")
    axes.set_xlabel("position in the block" + (" (dotted: the length trained on)" if trained else ""))
    axes.set_ylabel("loss in nats a token")
    _legend(axes)
    return _svg(figure, "loss by position")


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)
