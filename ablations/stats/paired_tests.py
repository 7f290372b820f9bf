"""The paired t, its equivalence test and power, Holm's correction, and the sign-flip test."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]


POWER = 0.8  # of the n that would decide


MOST = 1000  # seeds that are thought of as possible


class PairedT(NamedTuple):
    """What the paired t says of differences; numbers, or arrays of them."""

    mean: Array
    sd: Array
    low: Array
    high: Array
    p: Array
    equivalence_p: Array


def paired_t(differences: ArrayLike, *, alpha: float = 0.05, margin: float = math.inf) -> PairedT:
    """The paired t over the last axis, the seeds: mean, sd, interval, p, and p of two one-sided
    tests against the margin.

    Each mean has the error that its own differences show, with n - 1 degrees of freedom, and
    borrows nothing from the others: where variances are pooled over arms, or shrunk towards a
    pooled one, an arm that is noisier than the others is found different up to three times as often
    as is said, and so is every arm where it is the baseline that is noisy.
    """
    values = np.asarray(differences, float)
    n = values.shape[-1]
    mean, sd = values.mean(-1), values.std(-1, ddof=1)
    se = sd / math.sqrt(n)
    reach = stats.t.isf(alpha / 2, n - 1) * se
    return PairedT(
        mean,
        sd,
        mean - reach,
        mean + reach,
        t_test(mean, se, n - 1),
        equivalence_test(mean, se, n - 1, margin),
    )


def t_test(difference: ArrayLike, se: ArrayLike, df: ArrayLike) -> Array:
    """Two-sided p of t = difference / se."""
    return np.asarray(2 * stats.t.sf(np.abs(np.asarray(difference) / np.asarray(se)), df))


def equivalence_test(difference: ArrayLike, se: ArrayLike, df: ArrayLike, margin: float) -> Array:
    """p of two one-sided tests, the larger of P(T > (difference + margin) / se) and of its mirror
    image (Schuirmann 1987).
    """
    return np.asarray(stats.t.sf((margin - np.abs(np.asarray(difference))) / np.asarray(se), df))


def holm(p: ArrayLike) -> list[float]:
    """p corrected for the family: the i-th smallest of m by m - i + 1, and never below the one
    before (Holm 1979).
    """
    values = np.asarray(p, float)
    order = values.argsort()
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(stepped, 1)
    return [float(value) for value in corrected]


def t_power(effect: float, n: ArrayLike, alpha: float) -> Array:
    """The chance that n seeds find an effect, in sds of the differences: P(F > f) of 1 and n - 1,
    noncentral by n effect^2.

    Of t^2 rather than of t, whose distribution scipy has no number for where the effect is large.
    """
    seeds = np.asarray(n)
    noncentrality = np.clip(
        seeds * effect**2, 1e-9, 1e9
    )  # beyond, it is alpha and 1 to nine digits
    return np.asarray(stats.ncf.sf(stats.f.isf(alpha, 1, seeds - 1), 1, seeds - 1, noncentrality))


def seeds_needed(
    difference: float,
    sd: float,
    alpha: float,
    *,
    margin: float | None = None,
    above: int = 1,
    target: float = POWER,
) -> int | None:
    """The fewest seeds above which the paired t finds the difference, or two one-sided tests the
    equivalence, if true.

    Of power `target` each: by the noncentral t, and P(T < -c) - P(T' < c) for equivalence (Phillips
    1990). None above 1000.
    """
    n = np.arange(max(above + 1, 2), MOST + 1)
    enough = t_power(difference / sd, n, alpha) >= target
    if margin is not None and abs(difference) < margin:
        critical, root = stats.t.isf(alpha, n - 1), np.sqrt(n) / sd
        near, far = (
            stats.nct.cdf(critical, n - 1, (margin + sign * abs(difference)) * root)
            for sign in (-1, 1)
        )
        both = (
            1 - np.nan_to_num(near) - np.nan_to_num(far)
        )  # nan where it is too small for scipy to compute
        enough |= both >= target
    return int(n[enough.argmax()]) if enough.any() else None


def sign_flip(differences: ArrayLike) -> float:
    """Exact p of the mean under all 2^n signs, of 10,000 drawn ones above n = 13 (Fisher 1935)."""
    test = stats.permutation_test(
        (np.asarray(differences),), np.mean, permutation_type="samples", n_resamples=10_000, rng=0
    )
    return float(test.pvalue)
