"""Writes metrics.csv, the rows of metrics of a run."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from zoo.errors import ZooError
from zoo.utils.files import name_in_errors, write_atomically


class MetricsFile(Logger):
    """A row for each logged step; a resumed run drops the rows after its checkpoint."""

    def __init__(self, path: Path, resume_step: int = 0) -> None:
        super().__init__()
        self.path = path
        self.rows = {step: row for step, row in _read(path).items() if step <= resume_step}
        keys = (key for row in self.rows.values() for key in row)
        self.columns = list(dict.fromkeys(["step", *keys]))
        self._rewrite()

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        step = int(step or 0)
        new_row = step not in self.rows
        row = self.rows.setdefault(step, {"step": step})
        row.update({key: value for key, value in metrics.items() if key != "epoch"})
        new_columns = [key for key in row if key not in self.columns]
        self.columns += new_columns
        if new_row and not new_columns:
            with (
                name_in_errors(self.path),
                self.path.open("a", newline="", encoding="utf-8") as file,
            ):
                csv.DictWriter(file, self.columns).writerow(row)
        else:
            self._rewrite()

    @rank_zero_only
    def _rewrite(self) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns)
        writer.writeheader()
        writer.writerows(self.rows[step] for step in sorted(self.rows))
        write_atomically(self.path, text.getvalue().encode())


def _read(path: Path) -> dict[int, dict[str, Any]]:
    """The rows of a metrics.csv by step, without a last line that a full disk cut off."""
    if not path.exists():
        return {}
    try:
        content = path.read_bytes()
        complete = content.rpartition(b"\n")[0] or content
        lines = csv.DictReader(io.StringIO(complete.decode(), newline=""))
        return {
            int(row["step"]): {key: value for key, value in row.items() if value} for row in lines
        }
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise ZooError(f"{path} is damaged: rename it to resume without the rows before") from error
