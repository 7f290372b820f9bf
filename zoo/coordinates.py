"""`python -m zoo.coordinates init=mup`: how the size of activations grows with arch.dim (the
coordinate check of Yang 2022).

Models of several widths learn the same batch for a few steps. Where a rate is to be carried from a
narrow model to a wide one, what they compute must neither grow nor vanish with the width: an
exponent near 0 in every row.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from zoo.errors import cli_errors
from zoo.optim.coordinates import draw, measure, table
from zoo.utils import tables


@cli_errors()
def main() -> None:
    about = (__doc__ or "").split("\n\n", 1)[1]
    parser = argparse.ArgumentParser(prog="python -m zoo.coordinates", description=about)
    parser.add_argument(
        "words", nargs="*", metavar="WORD=VALUE", help="as for zoo.train: init=mup optim=lion"
    )
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[64, 128, 256, 512], help="values of arch.dim"
    )
    parser.add_argument("--steps", type=int, default=5, help="how often the batch is learned")
    parser.add_argument("--out", type=Path, help="draw it, as .svg, .png or .pdf")
    asked = parser.parse_intermixed_args()
    by_width = measure(asked.words, asked.widths, asked.steps)
    if asked.out:
        draw(by_width, asked.out)
    tables.show(table(by_width), spare=[f"dim {width}" for width in sorted(by_width)[:-2]])


if __name__ == "__main__":
    main()
