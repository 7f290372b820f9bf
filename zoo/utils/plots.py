"""Draws figures into files, with matplotlib from the extra transformer-zoo[report]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zoo.errors import ZooError
from zoo.utils import extras

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def power_law_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The p of value ∝ size^p: the slope of a least-squares line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def canvas(path: Path, width: float, height: float) -> Figure:
    """A figure of this size in inches, for a file.

    Raises ZooError without matplotlib, or for a file type that it cannot write.
    """
    extras.need("matplotlib", "a picture")
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    if path.suffix[1:] not in figure.canvas.get_supported_filetypes():
        raise ZooError(f"--out {path}: name a picture: .svg, .png or .pdf")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file; equal figures give equal bytes as SVG."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "zoo"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def logarithmic(axes: Axes, ticks: Sequence[int], **labels: str) -> None:
    """Make both axes logarithmic, with labels, and with ticks at these numbers alone."""
    axes.set(xscale="log", yscale="log", **labels)
    axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
    axes.minorticks_off()
