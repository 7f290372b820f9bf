"""What the runs of a study allow to be said: arms against a baseline, paired by seed, with the
errors over the family held.

The primary test is the paired t with Holm's correction. Everything here is a function of numbers:
it reads no file, knows no model, and gives the same answer whatever the order of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from ablations.outcomes import Outcome, Table, tabulate
from ablations.stats.effect import Comparison, Effect, Verdict
from ablations.stats.paired_tests import (
    MOST,
    Array,
    holm,
    paired_t,
    seeds_needed,
    sign_flip,
)
from zoo.errors import ZooError

FEWEST = 5  # seeds, below which no verdict is given
FEW_DOCUMENTS = 30  # below which an interval over them is not to be trusted


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
    """Every arm against the baseline, by the primary test: the paired t, corrected over the arms by
    Holm's method.

    `margin` is what counts as equivalent, in the metric's unit, and wins where a difference is both
    significant and smaller; `cap` is what a run counts as that diverged or is stuck, unless it was
    worse (`ablations.outcomes`): the loss of the unigram model. A second look at a study whose
    seeds were added later is tested at alpha / 2; that holds the errors of both looks together
    where the first was tested at alpha / 2 as well, and those of the second one alone where it was
    not.

    Errors hold over the family however the variances differ, and whichever arms are real: each test
    holds by itself, and Holm's correction asks for no more. Raises ZooError for what cannot be
    compared.
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
    level = alpha / 2 ** (look - 1)
    pairs = [_pair(table, arm, baseline) for arm in table.values if arm != baseline]
    tested = [pair for pair in pairs if pair.testable]
    numbers = _test(tested, alpha, level, margin, lower_is_better)
    effects = [
        _effect(pair, numbers.get(pair.arm, {}), table, baseline, len(tested), level)
        for pair in pairs
    ]
    spread = sum(pair.spread for pair in pairs if pair.spread > 0)
    noise = sum(pair.noise for pair in pairs if pair.spread > 0)
    return Comparison(
        baseline,
        tuple(effects),
        margin,
        level,
        look,
        lower_is_better,
        len(tested),
        cap,
        1 - noise / spread if spread else None,
        table.mean(baseline),
        {arm: len(values) for arm, values in table.values.items()},
        {arm: len(seeds) for arm, seeds in table.bad.items()},
        {arm: dict(count) for arm, count in table.missing.items()},
        _remarks(table),
    )


def _test(
    pairs: Sequence[_Pair], alpha: float, level: float, margin: float, lower_is_better: bool
) -> dict[str, dict[str, Any]]:
    """The tests of each pair, corrected over all of them: by arm, fields of an Effect."""
    if not pairs:
        return {}
    tests = [paired_t(pair.differences, alpha=alpha, margin=margin) for pair in pairs]
    p_holm = holm([test.p for test in tests])
    equivalence_holm = holm([test.equivalence_p for test in tests])
    numbers: dict[str, dict[str, Any]] = {}
    for number, (pair, test) in enumerate(zip(pairs, tests, strict=True)):
        row: dict[str, Any] = {name: float(value) for name, value in test._asdict().items()}
        del row["mean"]  # of the differences, where an Effect has that of the arm
        row["p_holm"], row["equivalence_holm"] = p_holm[number], equivalence_holm[number]
        row["verdict"] = _verdict(row, pair.n, pair.difference < 0, lower_is_better, level)
        if row["verdict"] == "inconclusive":
            row["needed"] = seeds_needed(
                pair.difference, row["sd"], level / len(pairs), margin=margin, above=pair.n
            )
        numbers[pair.arm] = row
    return numbers


@dataclass
class _Pair:
    """An arm and the baseline in the seeds that ended in both."""

    arm: str
    here: Array
    there: Array
    capped: int
    base_capped: int
    # degrees times variance, of the differences and of both sides, where neither is capped
    noise: float
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

    @property
    def all_capped(self) -> bool:
        """Whether every paired run of one side counts at a value that is not its own."""
        return self.n > 0 and self.n in (self.capped, self.base_capped)

    @property
    def both_capped(self) -> bool:
        """Whether the cap is compared with itself, which is no difference."""
        return self.capped == self.n and not np.any(self.differences)


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
    arm, n = pair.arm, pair.n
    found: dict[str, Any] = {"verdict": "exploratory" if n < FEWEST else "inconclusive", **numbers}
    notes = _notes(pair, found, table, baseline, alpha)
    if pair.all_capped:  # an interval would be one of values that stand for others
        found |= {"low": None, "high": None, "sd": None, "needed": None}
    fewest = math.ceil(math.log2(2 * family / alpha)) if numbers else 0  # 2^n signs to choose from
    if numbers and n >= fewest:
        found["sign_flip"] = sign_flip(pair.differences)
    elif numbers:
        notes.append(
            f"with {family} comparison{'s' if family > 1 else ''}, an exact sign-flip test needs at"
            f" least {fewest} seeds to reach significance"
        )
    difference = None if not n or pair.both_capped else pair.difference
    centre = abs(float(pair.there.mean())) if n else 0.0
    return Effect(
        arm=arm,
        n=n,
        mean=table.mean(arm),
        difference=difference,
        runs=len(table.values[arm]),
        diverged=len(table.bad[arm]),
        capped=pair.capped,
        base_capped=pair.base_capped,
        bad=bool(table.bad[arm] or table.bad[baseline]),
        divergence_p=_divergence_p(table, arm, baseline),
        percent=100 * difference / centre if difference is not None and centre else None,
        rho=1 - pair.noise / pair.spread if pair.spread > 0 else None,
        missing=table.missing[arm].total(),
        notes=tuple(notes),
        **found,
    )


def _notes(
    pair: _Pair, found: Mapping[str, Any], table: Table, baseline: str, alpha: float
) -> list[str]:
    """What keeps numbers of an arm from being shown or believed, in words."""
    arm, n, notes = pair.arm, pair.n, list[str]()
    if n < FEWEST:
        seeds = "seed" if n == 1 else "seeds"
        notes.append(f"exploratory: {n} paired {seeds}, and a verdict needs {FEWEST}")
    unpaired = len(table.values[arm]) - n
    if unpaired:
        are = "is" if unpaired == 1 else "are"
        notes.append(f"{unpaired} of its seeds did not end in the baseline, and {are} left out")
    if pair.all_capped:
        whose = "" if pair.capped == n else f" of {baseline}"
        notes.append(
            f"every run{whose} diverged or is stuck: its value is what that counts as, and an"
            " interval would say nothing"
        )
    if n > 1 and pair.same and pair.capped < n:
        notes.append(
            f"identical to {baseline} in every seed: is it the same configuration?"
            if not np.any(pair.differences)
            else "its difference is the same in every seed: there is no variance to test against"
        )
    for other, values in table.values.items():
        twin = other not in (arm, baseline) and len(values) > 1 and values == table.values[arm]
        if twin and not table.bad[arm]:
            notes.append(f"identical to {other} in every seed: is it the same configuration?")
    if found["verdict"] == "equivalent" and found["p_holm"] <= alpha:
        notes.append("the difference is significant, but smaller than the margin")
    undecided = found["verdict"] == "inconclusive" and found.get("low") is not None
    if undecided and not pair.all_capped and found["needed"] is None:
        notes.append(f"not even {MOST} seeds would decide")
    return notes


def _divergence_p(table: Table, arm: str, baseline: str) -> float | None:
    """Fisher's exact test of the share of an arm's runs that learned nothing against the
    baseline's.
    """
    runs, other_runs = len(table.values[arm]), len(table.values[baseline])
    lost, other_lost = len(table.bad[arm]), len(table.bad[baseline])
    if not runs or not (lost or other_lost):
        return None
    counts = [[lost, runs - lost], [other_lost, other_runs - other_lost]]
    return float(stats.fisher_exact(counts).pvalue)


def _remarks(table: Table) -> tuple[str, ...]:
    notes = [table.note] if table.note else []
    for arm, count in table.missing.items():
        if table.bad[arm] and len(table.bad[arm]) == len(table.values[arm]):
            notes.append(f"every run of {arm} diverged or is stuck")
        if count:
            states = ", ".join(f"{number} {status}" for status, number in sorted(count.items()))
            notes.append(f"{arm} lacks runs: {states}")
    return tuple(notes)
