"""The power of a study, the best of so many trials, and effects as equivalent compute."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from ablations.stats.paired_tests import Array, t_power
from zoo.errors import ZooError


def power(n: int, arms: int, sd: float, rho: float, effect: float, alpha: float = 0.05) -> float:
    """The chance that n seeds find an effect in one of several arms: noncentral t, sd of
    differences sd sqrt(2 (1 - rho)).

    At alpha / arms, the first step of Holm's correction, so that it is the least that the primary
    test has.
    """
    return float(t_power(effect / _spread(arms, sd, rho), n, alpha / arms))


def _spread(arms: int, sd: float, rho: float) -> float:
    """The standard deviation of the difference of two arms."""
    if arms < 1 or not sd > 0 or not -1 <= rho < 1:
        raise ZooError(
            f"arms={arms}, sd={sd}, rho={rho}: at least one arm, an sd above 0, and rho below 1"
        )
    return sd * math.sqrt(2 * (1 - rho))


def expected_best(scores: ArrayLike, *, lower_is_better: bool = True) -> Array:
    """The expected best of k = 1..N trials: sum of x_(i) ((i/N)^k - ((i-1)/N)^k), worst first
    (Dodge et al. 2019).
    """
    values = np.sort(np.asarray(scores, float))[:: -1 if lower_is_better else 1]
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ZooError(
            "give a list of finite scores, one a trial; the cap stands for a trial that diverged"
        )
    steps = np.arange(len(values) + 1) / len(values)
    trials = np.arange(1, len(values) + 1)[:, None]
    return np.asarray(np.diff(steps**trials, axis=1) @ values)


def equivalent_compute(baseline: Iterable[tuple[float, float]], loss: float) -> float:
    """The compute at which the baseline has this loss: log compute, linear between runs of separate
    full schedules.

    `baseline` has pairs of compute and loss. What is not between two of them is not known, and
    refused.
    """
    curve = np.array(sorted(baseline), float).reshape(-1, 2)
    compute, losses = curve.T
    if len(curve) < 2 or not np.isfinite(curve).all() or compute[0] <= 0:
        raise ZooError(
            "an equivalent compute needs two points of the baseline at least, of finite loss and"
            " compute above 0"
        )
    if (np.diff(losses) >= 0).any() or (np.diff(compute) <= 0).any():
        raise ZooError(
            "the baseline's loss does not fall with compute all along: average more seeds at each"
            " point"
        )
    if not losses[-1] <= loss <= losses[0]:
        raise ZooError(
            f"a loss of {loss:.4g} is beyond the baseline's, {losses[0]:.4g} to {losses[-1]:.4g}: "
            "run it with more or less compute, as this is not extrapolated"
        )
    return float(np.exp(np.interp(loss, losses[::-1], np.log(compute[::-1]))))
