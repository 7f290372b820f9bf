"""Reads the summaries of many runs into one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import ZooError
from zoo.utils import extras, files

if TYPE_CHECKING:
    import pandas

SPREAD = ("choices", "metrics", "yardsticks")  # whose entries get a column each
UNKNOWN = "unreadable"  # the status of a run whose summary is missing or damaged


def read(folder: Path) -> pandas.DataFrame:
    """A row for each run in or below a folder, by its path. Raises ZooError for none."""
    extras.need("pandas", "zoo.runs")
    import pandas

    places = sorted(place.parent for place in folder.rglob("config.yaml") if _is_run(place))
    if not places:
        raise ZooError(f"there is no run in {folder}: give a folder that holds runs, such as runs/")
    rows = [_row(files.read_json(place / "summary.json")) for place in places]
    names = pandas.Index([str(place.relative_to(folder)) for place in places], name="run")
    return pandas.DataFrame(rows, index=names)


def _is_run(config: Path) -> bool:
    """Whether a config.yaml is a run's own, and not Hydra's copy of it in a hidden folder."""
    return not config.parent.name.startswith(".")


def _row(summary: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"status": summary.get("status", UNKNOWN)}
    for key, value in summary.items():
        if key in SPREAD and isinstance(value, dict):
            row |= value
        elif key == "overrides" and isinstance(value, list):
            row[key] = " ".join(map(str, value))
        elif not isinstance(value, dict | list):
            row[key] = value
    return row
