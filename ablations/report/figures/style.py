"""How every figure looks: an SVG that takes the colours of the page around it."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from ablations.results import Results

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


def picture(draw: Callable[..., str]) -> Callable[..., str]:
    """In the style of the page from the first line to the last letter of a legend, and of no other
    figure.
    """

    @wraps(draw)
    def styled(*given: Any) -> str:
        matplotlib.use("svg")
        with matplotlib.rc_context(STYLE):
            return draw(*given)

    return styled


def empty_figure(height: float, **grid: Any) -> tuple[Any, Any]:
    figure = Figure((WIDTH, height), layout="constrained")
    return figure, figure.subplots(**grid)


def svg(figure: Any, about: str) -> str:
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
    """A name as matplotlib shows it: without taking $ for mathematics, its middle left out where it
    is long.
    """
    if len(text) > letters:
        half = letters // 2
        text = f"{text[:half]}…{text[1 - (letters - half) :]}"
    return text.replace("$", r"\$")


def colours(results: Results) -> dict[str, str]:
    """One for each arm; where there are more than can be told apart, for the baseline and the
    best.
    """
    if len(results.arms) <= len(COLOURS):
        shown, palette = results.arms, list(COLOURS)
    else:
        means = {arm: results.table.mean(arm) for arm in results.arms}
        reached = {arm: mean for arm, mean in means.items() if mean is not None}
        shown = sorted(reached, key=lambda arm: reached[arm])
        if not results.measure.lower_is_better:
            shown.reverse()
        palette = list(COLOURS[:-1])  # the last is for all others
    order = dict.fromkeys([results.baseline, *shown])
    return dict(zip(order, palette, strict=False))


def axis(results: Results) -> str:
    """The study's metric with its unit."""
    return plain(f"{results.metric} ({results.measure.unit})")


def legend(figure: Any, results: Results, named: Mapping[str, str], marked: bool = True) -> None:
    """Below the picture, where names of any length take no room from it; marked where it is of the
    runs that count.
    """
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
