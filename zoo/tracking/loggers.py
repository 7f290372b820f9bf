"""Registers the loggers that add nothing to metrics.csv, which every run writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo.registry import register


@register("logger", "none", "No logger; metrics.csv is part of every run and is still written.")
@register("logger", "csv", "metrics.csv in the run's folder, and nothing else.")
def no_other_logger(config: dict[str, Any], folder: Path, summary: dict[str, Any]) -> None:
    """Log nothing beside metrics.csv."""
