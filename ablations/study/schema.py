"""The schema of a study: what is compared, on how many seeds, at which budget, and which margin.

A study is data, read from `conf/study/NAME.yaml`. Its hash covers everything that a reader relies
on. Its key, which names its folder, covers what decides its runs and their test (arms, seeds,
budget, metric, margin).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from zoo import metrics
from zoo.config import FREE
from zoo.metrics import Metric

DESIGNS = ("one_at_a_time", "leave_one_out", "ladder", "factorial", "fractional", "arms")
BUDGETS = ("params", "active", "flops", "tokens", "seconds", "none")
# The cost that each solvable budget matches.
UNITS = {
    "params": "parameters",
    "active": "active",
    "flops": "training_flops",
    "tokens": "tokens",
}
TOLERANCE = 0.01  # relative difference allowed between matched budgets
VERDICTS = ("better", "worse", "equivalent", "inconclusive")
# Version of the hash. Version 1, which is the key of today, covered neither the question nor the
# expectations nor the seed SD.
HASHING = 2
# The fields behind the key. Their order is fixed: it decides the folder names of old studies.
KEYED = (
    "baseline",
    "common",
    "factors",
    "arms",
    "design",
    "constraints",
    "pairs",
    "seeds",
    "match",
    "match_by",
    "tune",
    "metric",
    "margin",
)
Choices = dict[str, list[str]]  # the name of each choice -> the overrides that make it


@dataclass(frozen=True)
class Tune:
    """A grid search, the same for each arm, on seeds that the comparison does not use.

    `trials` limits it to so many points of the grid, drawn at random and shared by all arms.
    """

    grid: dict[str, list[Any]]
    seeds: list[int]
    trials: int | None = None


@dataclass(frozen=True)
class Study:
    """A study as it is specified, with every default filled in."""

    name: str
    about: str = ""
    question: str = ""
    baseline: list[str] = field(default_factory=list)  # overrides of the first arm
    common: list[str] = field(default_factory=list)  # overrides of every run: its length, its data
    factors: dict[str, Choices] = field(default_factory=dict)  # first choice: the baseline's
    arms: Choices = field(default_factory=dict)  # with design=arms; the first is the baseline
    design: str = "one_at_a_time"
    constraints: list[list[str]] = field(default_factory=list)  # overrides no arm may combine
    pairs: list[list[str]] = field(default_factory=list)  # factors that vary together, in order
    seeds: list[int] = field(default_factory=lambda: list(range(5)))
    match: str = "params"
    match_by: list[str] = field(default_factory=list)  # options to solve for: the first an arm has
    tune: Tune | None = None
    metric: str = "val/loss"
    margin: float | None = None  # smaller differences do not matter
    sd: float = 0.0102  # seed SD of the metric, expected in advance (that of the tiny pilot runs)
    expected: dict[str, str] = field(default_factory=dict)

    @property
    def measure(self) -> Metric:
        return metrics.of(self.metric)

    @property
    def key(self) -> str:
        specification = plain(asdict(self))
        return _digest({name: specification[name] for name in KEYED})

    @property
    def hash(self) -> str:
        return hashed(asdict(self))


def field_names() -> list[str]:
    return [field.name for field in fields(Study)]


def hashed(specification: Mapping[str, Any]) -> str:
    """Hash a specification, without `about`, which no report shows, and without empty fields.

    Leaving out empty fields keeps the hashes of old studies when a new field is added.
    """
    return _digest(
        {
            name: value
            for name, value in plain(specification).items()
            if name != "about" and value not in (None, "", [], {})
        }
    )


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()


def plain(specification: Mapping[str, Any]) -> dict[str, Any]:
    """A specification without the overrides that change no result, such as the logger."""
    common = specification.get("common") or []
    return {**specification, "common": [word for word in common if not word.startswith(FREE)]}


def merged(*lists: Sequence[str]) -> list[str]:
    """Concatenate lists of overrides; the last override of a key wins and takes its place."""
    last: dict[str, str] = {}
    for overrides in lists:
        for override in overrides:
            key = override.split("=", 1)[0]
            last.pop(key, None)
            last[key] = override
    return list(last.values())
