"""`python -m zoo.inspect complexity attn=gqa pos=rope`: how time and memory of a mixer grow with
the sequence length.

Softmax attention by each way of computing it, beside the mixers that have no such choice (recurrent
ones): each alone in a residual with its position, over one sequence. Training is forward and
backward. Time is CPU seconds of the process; memory the most that a pass holds at once beside
weights and inputs. The exponent is p of figure ∝ length^p, over the longer lengths' half.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich import print_json

from zoo.cost.complexity import draw, measure, table
from zoo.errors import cli_errors
from zoo.utils import allocator, plots, tables


@cli_errors()
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m zoo.inspect", description=(__doc__ or "").split("\n\n", 1)[1]
    )
    parser.add_argument("what", choices=["complexity"], help="what is looked at")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD=VALUE",
        help="as for zoo.train: attn=gqa pos=rope arch.dim=256;"
        " attn.backend=sdpa shows this backend alone beside the recurrent mixers",
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048], help="in tokens"
    )
    parser.add_argument(
        "--out", type=Path, help="draw it, as .svg, .png or .pdf; needs transformer-zoo[report]"
    )
    parser.add_argument(
        "--json", action="store_true", help="for programs: seconds, bytes and exponents"
    )
    asked = parser.parse_intermixed_args()
    lengths = sorted(set(asked.lengths))
    figure = plots.canvas(asked.out, 9, 7) if asked.out else None
    allocator.keep_freed()
    curves = measure(asked.words, lengths)
    if figure:
        plots.save(draw(figure, lengths, curves), asked.out)
    if asked.json:
        print_json(data={"lengths": lengths, "mixers": curves})
    else:
        tables.show(table(lengths, curves), spare=[f"{length:,}" for length in lengths[:-2]])


if __name__ == "__main__":
    main()
