"""A run as its folder describes it, and the runs of a study with how each ended."""

from __future__ import annotations

import csv
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ablations import outcomes
from ablations.outcomes import Outcome, Table
from ablations.stats import Array
from zoo import metrics
from zoo.metrics import Metric
from zoo.tracking.status import MISSING, PENDING

# The C loader is ten times as fast; not every build of PyYAML has it.
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
NOT_OF_THE_RUN = ("hydra.", "resume=", "logger.")  # overrides that say how it was started
# What a damaged config.yaml raises; PyYAML itself passes on the errors of odd dates.
YAML_ERRORS = (OSError, ValueError, TypeError, OverflowError, RecursionError, yaml.YAMLError)
# What a damaged evaluation.npz raises.
NPZ_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    TypeError,
    AttributeError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Run:
    """One run of an arm with a seed. The summary is empty if its file is missing or unreadable."""

    arm: str
    seed: int
    folder: Path
    summary: Mapping[str, Any]

    @property
    def status(self) -> str:
        return str(self.summary.get("status") or MISSING)

    def value(self, metric: str) -> float | None:
        """The final value of a metric, where it is a finite number."""
        return metrics.number((self.summary.get("metrics") or {}).get(metric))

    @cached_property
    def config(self) -> dict[str, Any]:
        path = self.folder / "config.yaml"
        try:
            content = yaml.load(path.read_text(encoding="utf-8"), YAML_LOADER)
        except YAML_ERRORS:
            return {}
        if not isinstance(content, dict):
            return {}
        return {str(key): node for key, node in content.items() if isinstance(node, dict)}

    def curve(self, metric: str) -> Array:
        """Step and value of each time that a metric was logged, shape (n, 2)."""
        points = []
        try:
            with (self.folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
                names, *rows = csv.reader(file)
            step_at, at = names.index("step"), names.index(metric)
            for row in rows:
                if len(row) > max(at, step_at) and row[at]:
                    points.append((metrics.number(int(row[step_at])), float(row[at])))
        except (OSError, ValueError, csv.Error):
            points = []
        points = [(step, value) for step, value in points if step is not None]
        return np.array(points, float).reshape(-1, 2)

    @property
    def by_document(self) -> Array | None:
        """Nats per token of each document of the last evaluation; None if unknown.

        NaN stands for a document without a token.
        """
        return self._nats_per_token("document")

    @property
    def by_position(self) -> Array | None:
        """Nats per token at each position of a block, NaN where there is no token."""
        return self._nats_per_token("position")

    def _nats_per_token(self, unit: str) -> Array | None:
        try:
            with np.load(self.folder / "evaluation.npz", allow_pickle=False) as file:
                nats = np.asarray(file[f"{unit}_nats"], float)
                tokens = np.asarray(file[f"{unit}_tokens"], float)
        except NPZ_ERRORS:
            return None
        if nats.ndim != 1 or nats.shape != tokens.shape:
            return None
        if not np.isfinite(nats).all():  # it diverged: a mean of the rest would not be its own
            return None
        return np.divide(nats, tokens, out=np.full(nats.shape, np.nan), where=tokens > 0)

    @property
    def overrides(self) -> list[str]:
        """The overrides that make this run again."""
        overrides = [str(override) for override in self.summary.get("overrides") or []]
        return [override for override in overrides if not override.startswith(NOT_OF_THE_RUN)]


@dataclass
class Results:
    """The runs below a folder, with the study that planned them; without a plan, a sweep."""

    folder: Path
    runs: list[Run]
    plan: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def study(self) -> dict[str, Any]:
        return self.plan["study"] if self.plan else {}

    @property
    def metric(self) -> str:
        return self.study.get("metric") or "val/loss"

    @property
    def measure(self) -> Metric:
        return metrics.of(self.metric)

    @cached_property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(run.arm for run in self.runs))

    @property
    def baseline(self) -> str:
        return self.plan["baseline"] if self.plan else self.arms[0]

    @property
    def levels(self) -> dict[str, dict[str, str]]:
        """The choice of each factor of the design, by arm."""
        arms = self.plan["arms"] if self.plan else []
        return {arm["name"]: arm.get("levels") or {} for arm in arms}

    def of(self, arm: str) -> list[Run]:
        return [run for run in self.runs if run.arm == arm]

    @property
    def cap(self) -> float | None:
        """The value given to a run that learned nothing, unless its own was worse."""
        return outcomes.unigram_level((run.summary for run in self.runs), self.measure)

    @property
    def pending(self) -> int:
        """The number of planned runs that are still to end."""
        return sum(run.status in PENDING for run in self.runs) if self.plan else 0

    def outcomes(self) -> list[Outcome]:
        """How each run ended, in the order of the runs, with the value that it counts as."""
        ended = [
            outcomes.outcome(run.arm, run.seed, run.summary, self.measure) for run in self.runs
        ]
        return outcomes.settled(ended, self.cap, self.measure.lower_is_better)

    @cached_property
    def table(self) -> Table:
        """The values that the runs count as, by arm and seed."""
        return outcomes.arranged(self.outcomes(), self.cap)
