"""What the runs of a study allow to be said: arms against a baseline, paired by seed, with the errors over the family held.

The primary test is the paired t with Holm's correction. Everything here is a function of numbers: it reads no file, knows no
model, and gives the same answer whatever the order of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from ablations.outcomes import Outcome, Table, tabulate
from zoo.errors import ZooError

Array = NDArray[np.float64]
Verdict = Literal["better", "worse", "equivalent", "inconclusive", "exploratory", "withheld"]

FEWEST = 5  # seeds, below which no verdict is given
FEW_DOCUMENTS = 30  # below which an interval over them is not to be trusted
POWER = 0.8  # of the n that would decide
MOST = 1000  # seeds that are thought of as possible


@dataclass(frozen=True)
class Effect:
    """An arm against the baseline; None stands for a number that these runs do not allow."""

    arm: str
    n: int  # seeds that ended in both
    verdict: Verdict
    mean: float | None = None  # over all its runs that ended, each as what it counts
    difference: float | None = None  # arm - baseline, paired by seed
    low: float | None = None  # of the t interval, for this arm alone
    high: float | None = None
    percent: float | None = None  # of the baseline's mean
    sd: float | None = None  # of the paired differences
    p: float | None = None  # paired t
    p_holm: float | None = None
    equivalence_p: float | None = None  # the larger of the two one-sided tests
    equivalence_holm: float | None = None
    needed: int | None = None  # seeds that would decide an inconclusive arm
    rho: float | None = None  # intraclass correlation of the pairs
    sign_flip: float | None = (
        None  # for this arm alone; not shown where it could not reject within the family
    )
    runs: int = 0  # that ended
    diverged: int = 0  # of those, also where stuck
    capped: int = 0  # of the paired ones, those that count at a value that is not their own
    base_capped: int = 0  # and of the baseline's
    bad: bool = False  # whether it or the baseline has runs that learned nothing, so that whatever is shown of it says so
    divergence_p: float | None = None  # Fisher's exact test against the baseline's rate
    documents: int | None = None  # of the validation, where they are known
    documents_seeds: int | None = (
        None  # those that have a loss by document: not where a run diverged
    )
    documents_low: float | None = None  # of the interval over documents and seeds
    documents_high: float | None = None
    missing: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """All arms against one baseline, and by what they were judged."""

    baseline: str
    effects: tuple[Effect, ...]  # by name
    margin: float
    alpha: float  # of the family, after the looks
    look: int
    lower_is_better: bool
    family: int  # tests that Holm's correction counts
    cap: float | None  # what a run counts as that learned nothing, unless it was worse
    rho: float | None  # over all arms
    baseline_mean: float | None
    runs: Mapping[str, int]  # that ended, of the arms and the baseline
    diverged: Mapping[str, int]
    missing: Mapping[str, Mapping[str, int]]  # by status
    notes: tuple[str, ...] = ()

    def __getitem__(self, arm: str) -> Effect:
        return next(effect for effect in self.effects if effect.arm == arm)


class PairedT(NamedTuple):
    """What the paired t says of differences; numbers, or arrays of them."""

    mean: Array
    sd: Array
    low: Array
    high: Array
    p: Array
    equivalence_p: Array


def paired_t(differences: ArrayLike, *, alpha: float = 0.05, margin: float = math.inf) -> PairedT:
    """The paired t over the last axis, the seeds: mean, sd, interval, p, and p of two one-sided tests against the margin.

    Each mean has the error that its own differences show, with n - 1 degrees of freedom, and borrows nothing from the others:
    where variances are pooled over arms, or shrunk towards a pooled one, an arm that is noisier than the others is found
    different up to three times as often as is said, and so is every arm where it is the baseline that is noisy.
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
    """p of two one-sided tests, the larger of P(T > (difference + margin) / se) and of its mirror image (Schuirmann 1987)."""
    return np.asarray(stats.t.sf((margin - np.abs(np.asarray(difference))) / np.asarray(se), df))


def holm(p: ArrayLike) -> list[float]:
    """p corrected for the family: the i-th smallest of m by m - i + 1, and never below the one before (Holm 1979)."""
    values = np.asarray(p, float)
    order = values.argsort()
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(stepped, 1)
    return [float(value) for value in corrected]


def t_power(effect: float, n: ArrayLike, alpha: float) -> Array:
    """The chance that n seeds find an effect, in sds of the differences: P(F > f) of 1 and n - 1, noncentral by n effect^2.

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
    """The fewest seeds above which the paired t finds the difference, or two one-sided tests the equivalence, if true.

    Of power `target` each: by the noncentral t, and P(T < -c) - P(T' < c) for equivalence (Phillips 1990). None above 1000.
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


def compare(
    outcomes: Iterable[Outcome],
    baseline: str,
    *,
    margin: float,
    alpha: float = 0.05,
    lower_is_better: bool = True,
    cap: float | None = None,
    look: int = 1,
) -> Comparison:
    """Every arm against the baseline, by the primary test: the paired t, corrected over the arms by Holm's method.

    `margin` is what counts as equivalent, in the metric's unit, and wins where a difference is both significant and smaller;
    `cap` is what a run counts as that diverged or is stuck, unless it was worse (`ablations.outcomes`): the loss of the
    unigram model. A second look at a study whose seeds were added later is tested at alpha / 2; that holds the errors of
    both looks together where the first was tested at alpha / 2 as well, and those of the second one alone where it was not.

    Errors hold over the family however the variances differ, and whichever arms are real: each test holds by itself, and
    Holm's correction asks for no more. Raises ZooError for what cannot be compared.
    """
    if not (math.isfinite(margin) and margin > 0):
        raise ZooError(
            f"margin={margin}: give the largest difference that does not matter, above 0"
        )
    if not 0 < alpha < 1 or look < 1:
        raise ZooError(
            f"alpha={alpha}, look={look}: alpha is between 0 and 1, and looks are counted from 1"
        )
    table = tabulate(outcomes, cap, lower_is_better)
    if not table.values.get(baseline):
        known = ", ".join(arm for arm, values in table.values.items() if values) or "none"
        raise ZooError(f"the baseline {baseline!r} has no run that ended; arms that have: {known}")
    tested = alpha / 2 ** (look - 1)
    pairs = [_pair(table, arm, baseline) for arm in table.values if arm != baseline]
    judged = [pair for pair in pairs if pair.testable]
    numbers: dict[str, dict[str, Any]] = {}
    if judged:
        found = [paired_t(pair.differences, alpha=alpha, margin=margin) for pair in judged]
        corrected = zip(
            holm([one.p for one in found]), holm([one.equivalence_p for one in found]), strict=True
        )
        for pair, one, (p_holm, equivalence_holm) in zip(judged, found, corrected, strict=True):
            row: dict[str, Any] = {
                name: float(value) for name, value in one._asdict().items() if name != "mean"
            }
            row |= {"p_holm": p_holm, "equivalence_holm": equivalence_holm}
            row["verdict"] = _verdict(row, pair.n, pair.difference < 0, lower_is_better, tested)
            if row["verdict"] == "inconclusive":
                row["needed"] = seeds_needed(
                    pair.difference, row["sd"], tested / len(judged), margin=margin, above=pair.n
                )
            numbers[pair.arm] = row
    spread = [pair for pair in pairs if pair.spread > 0]
    return Comparison(
        baseline,
        tuple(
            _effect(pair, numbers.get(pair.arm, {}), table, baseline, len(judged), tested)
            for pair in pairs
        ),
        margin,
        tested,
        look,
        lower_is_better,
        len(judged),
        cap,
        1 - sum(pair.noise for pair in spread) / sum(pair.spread for pair in spread)
        if spread
        else None,
        table.mean(baseline),
        {arm: len(values) for arm, values in table.values.items()},
        {arm: len(seeds) for arm, seeds in table.bad.items()},
        {arm: dict(count) for arm, count in table.missing.items()},
        _remarks(table),
    )


@dataclass
class _Pair:
    """An arm and the baseline in the seeds that ended in both."""

    arm: str
    here: Array
    there: Array
    capped: int
    base_capped: int
    noise: float  # degrees times variance, of the differences and of both sides, where neither is capped
    spread: float

    @property
    def n(self) -> int:
        return len(self.here)

    @property
    def differences(self) -> Array:
        return self.here - self.there

    @property
    def difference(self) -> float:
        return float(self.differences.mean())

    @property
    def same(self) -> bool:
        """Whether the difference is the same in every seed, but for rounding."""
        scale = np.abs([self.here, self.there]).max()
        return bool(np.ptp(self.differences) <= 1e-12 * scale)

    @property
    def testable(self) -> bool:
        return self.n > 1 and not self.same


def _pair(table: Table, arm: str, baseline: str) -> _Pair:
    here, there = table.values[arm], table.values[baseline]
    seeds = sorted(here.keys() & there.keys())
    clean = [seed for seed in seeds if seed not in table.capped[arm] | table.capped[baseline]]
    both = np.array([[here[seed], there[seed]] for seed in clean]).reshape(-1, 2)
    enough = len(clean) > 2
    noise = (len(clean) - 1) * float((both[:, 0] - both[:, 1]).var(ddof=1)) if enough else 0.0
    spread = (len(clean) - 1) * float(both.var(axis=0, ddof=1).sum()) if enough else 0.0
    return _Pair(
        arm,
        np.array([here[seed] for seed in seeds]),
        np.array([there[seed] for seed in seeds]),
        len(table.capped[arm] & set(seeds)),
        len(table.capped[baseline] & set(seeds)),
        noise,
        spread,
    )


def _verdict(
    numbers: Mapping[str, float], n: int, below: bool, lower_is_better: bool, alpha: float
) -> Verdict:
    if n < FEWEST:
        return "exploratory"
    if numbers["equivalence_holm"] <= alpha:
        return "equivalent"
    if numbers["p_holm"] <= alpha:
        return "better" if below == lower_is_better else "worse"
    return "inconclusive"


def _effect(
    pair: _Pair, numbers: Mapping[str, Any], table: Table, baseline: str, family: int, alpha: float
) -> Effect:
    """The numbers of one arm that may be shown, and in words why the others may not."""
    arm, n, notes = pair.arm, pair.n, []
    difference = pair.difference if n else None
    if pair.capped == n and not np.any(
        pair.here - pair.there
    ):  # the cap against the cap is no difference
        difference = None
    found: dict[str, Any] = {"verdict": "exploratory" if n < FEWEST else "inconclusive", **numbers}
    if n < FEWEST:
        notes.append(f"exploratory: {n} paired seed{'s' * (n != 1)}, and a verdict needs {FEWEST}")
    unpaired = len(table.values[arm]) - n
    if unpaired:
        notes.append(
            f"{unpaired} of its seeds did not end in the baseline, and {'is' if unpaired == 1 else 'are'} left out"
        )
    if n and n in (pair.capped, pair.base_capped):
        whose = "" if pair.capped == n else f" of {baseline}"
        notes.append(
            f"every run{whose} diverged or is stuck: its value is what that counts as, and an interval would say"
            " nothing"
        )
        found |= {"low": None, "high": None, "sd": None, "needed": None}
    if n > 1 and pair.same and pair.capped < n:
        twin = not np.any(pair.here - pair.there)
        notes.append(
            f"identical to {baseline} in every seed: is it the same configuration?"
            if twin
            else "its difference is the same in every seed: there is no variance to test against"
        )
    for other, values in table.values.items():
        if (
            other not in (arm, baseline)
            and len(values) > 1
            and values == table.values[arm]
            and not table.bad[arm]
        ):
            notes.append(f"identical to {other} in every seed: is it the same configuration?")
    if found["verdict"] == "equivalent" and found["p_holm"] <= alpha:
        notes.append("the difference is significant, but smaller than the margin")
    if (
        found["verdict"] == "inconclusive"
        and found.get("low") is not None
        and found["needed"] is None
    ):
        notes.append(f"not even {MOST} seeds would decide")
    if numbers:
        fewest = math.ceil(math.log2(2 * family / alpha))
        if n >= fewest:
            found["sign_flip"] = sign_flip(pair.differences)
        else:
            notes.append(
                f"an exact sign-flip test over {family} arm{'s' * (family > 1)} cannot reject below {fewest} seeds"
            )
    runs, other_runs = len(table.values[arm]), len(table.values[baseline])
    lost, other_lost = len(table.bad[arm]), len(table.bad[baseline])
    if runs and (lost or other_lost):
        found["divergence_p"] = float(
            stats.fisher_exact([[lost, runs - lost], [other_lost, other_runs - other_lost]]).pvalue
        )
    centre = abs(float(pair.there.mean())) if n else 0.0
    return Effect(
        arm=arm,
        n=n,
        mean=table.mean(arm),
        difference=difference,
        runs=runs,
        diverged=lost,
        capped=pair.capped,
        base_capped=pair.base_capped,
        bad=bool(table.bad[arm] or table.bad[baseline]),
        percent=100 * difference / centre if difference is not None and centre else None,
        rho=1 - pair.noise / pair.spread if pair.spread > 0 else None,
        missing=table.missing[arm].total(),
        notes=tuple(notes),
        **found,
    )


def _remarks(table: Table) -> tuple[str, ...]:
    notes = [table.note] if table.note else []
    for arm, count in table.missing.items():
        if table.bad[arm] and len(table.bad[arm]) == len(table.values[arm]):
            notes.append(f"every run of {arm} diverged or is stuck")
        if count:
            states = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
            notes.append(f"{arm} lacks runs: {states}")
    return tuple(notes)
