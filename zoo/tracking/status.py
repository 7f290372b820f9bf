"""Names the statuses of a run, as they stand in its summary.json."""

from __future__ import annotations

from pathlib import Path

from zoo.utils import files

WAITING = "waiting"  # to be tried again
RUNNING = "running"
INTERRUPTED = "interrupted"
FINISHED = "finished"
DIVERGED = "diverged"
FAILED = "failed"
MISSING = "missing"  # there is no summary, or it cannot be read

SETTLED = (FINISHED, DIVERGED)  # an outcome, so not run again
ENDED = (*SETTLED, FAILED)  # a failed run is tried again
PENDING = (MISSING, WAITING, RUNNING, INTERRUPTED)  # to be run or resumed


def of(folder: Path) -> str:
    """The status of the run in a folder."""
    return str(files.read_json(folder / "summary.json").get("status") or MISSING)
