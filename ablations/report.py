"""`python -m ablations.report DIR`: the arms of a sweep side by side, from the summaries of its runs."""

from __future__ import annotations

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zoo.registry import plainly
from zoo.storage import read_json


def arms(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The runs below a folder by arm: the words they were told, but for the seed."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.glob("*/summary.json")):
        run = read_json(path)
        words = [str(word) for word in run.get("overrides") or [] if not word.startswith(("seed=", "hydra."))]
        found[" ".join(words) or "default"].append(run)
    return found


def show(folder: Path) -> None:
    """Print a row an arm: runs by how they ended, and the mean and spread of the validation loss of the finished ones."""
    table = Table(title=Text(f"Arms of {folder}"), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("arm", "runs", "val/loss", "± sd", "bits per byte", "parameters"):
        table.add_column(column, justify="left" if column in ("arm", "runs") else "right")
    runs = arms(folder)
    for arm, members in runs.items():
        ended = Counter(str(run.get("status", "unreadable")) for run in members)
        finished = [run.get("metrics") or {} for run in members if run.get("status") == "finished"]
        losses, bits = (_numbers(metrics.get(name) for metrics in finished) for name in ("val/loss", "val/bits_per_byte"))
        table.add_row(
            Text(arm),
            ", ".join(f"{number} {status}" for status, number in ended.items()),
            f"{statistics.mean(losses):.4f}" if losses else "–",
            f"{statistics.stdev(losses):.4f}" if len(losses) > 1 else "–",
            f"{statistics.mean(bits):.4f}" if bits else "–",
            f"{members[0]['parameters']:,}" if members[0].get("parameters") else "–",
        )
    Console().print(table)
    if min(map(len, runs.values()), default=0) < 5:
        print("Fewer than 5 seeds an arm: exploratory. Differences of this size may be chance, and no winner is named.")


def _numbers(values: Iterable[Any]) -> list[float]:
    return [value for value in values if isinstance(value, int | float)]


@plainly()
def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(f"usage: python -m ablations.report DIR\n\n{__doc__}")
    folder = Path(sys.argv[1])
    if not arms(folder):
        sys.exit(f"error: no run below {folder}: give a sweep's folder, whose jobs hold a summary.json each")
    show(folder)


if __name__ == "__main__":
    main()
