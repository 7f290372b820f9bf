"""What a comparison says: of each arm, and of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["better", "worse", "equivalent", "inconclusive", "exploratory", "withheld"]


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
    # whether it or the baseline has runs that learned nothing, so that whatever is shown of it says
    # so
    bad: bool = False
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
