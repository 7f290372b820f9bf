"""`python -m ablations.run norm=layer,rms seed=0,1,2`: one run for each combination, then a table of the arms."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

from ablations import report
from zoo import train
from zoo.registry import plainly


@plainly()
def main() -> None:
    arguments = train.asked()
    if not train.only_asks(arguments):
        given = [word.split("=", 1)[1].strip("'\"") for word in sys.argv if word.startswith("hydra.sweep.dir=")]
        folder = given[-1] if given else f"runs/sweep_{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
        sys.argv[1:1] = [] if arguments.multirun else ["-m"]
        sys.argv += [] if given else [f"hydra.sweep.dir='{folder}'"]
    try:
        train.main()
    finally:  # a failing job ends the process with its error, after the others have finished
        if not train.only_asks(arguments) and folder and Path(folder).is_dir():
            report.show(Path(folder))


if __name__ == "__main__":
    main()
