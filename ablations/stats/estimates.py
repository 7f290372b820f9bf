"""A number with its interval and p, over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ablations.stats.paired_tests import Array, holm, paired_t
from zoo.errors import ZooError


@dataclass(frozen=True)
class Estimate:
    """A number with its interval and its two-sided p."""

    name: str
    value: float
    low: float
    high: float
    p: float
    p_holm: float | None = None
    notes: tuple[str, ...] = ()
    capped: bool = False  # whether runs that learned nothing are in it


def t_interval(name: str, values: Array, alpha: float) -> Estimate:
    """A mean over seeds and its t interval; where every seed says the same, there is no error to
    put on it.
    """
    if np.ptp(values) <= 1e-12 * max(np.abs(values).max(), 1.0):
        raise ZooError(
            f"{name} changes every seed by the same: there is no variance to make an interval of"
        )
    found = paired_t(values, alpha=alpha)
    return Estimate(name, float(found.mean), float(found.low), float(found.high), float(found.p))


def corrected(found: Sequence[Estimate]) -> tuple[Estimate, ...]:
    return tuple(
        replace(one, p_holm=p) for one, p in zip(found, holm([one.p for one in found]), strict=True)
    )
