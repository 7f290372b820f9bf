"""Decide what a run counts as: one rule, and one footnote, for diverged and stuck runs.

A run that is stuck at the unigram level counts at that level, or at its own value if that is worse.
A run that diverged has no value: it counts at the unigram level, or at the worst value that another
run counts as, if that is worse. So none is dropped, and none is made better than it was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zoo.data import baselines
from zoo.errors import ZooError
from zoo.metrics import HUGE, Metric, number, unigram_nats
from zoo.tracking.status import DIVERGED, FINISHED, MISSING, SETTLED

LARGE = 1000  # numbers from here on are shown without decimals
MARK = "†"  # marks figures that include diverged or stuck runs


@dataclass(frozen=True)
class Outcome:
    """How one run ended. A diverged or stuck run is an outcome, too, and never dropped."""

    arm: str
    seed: int
    value: float | None
    status: str = FINISHED
    stuck: bool = False
    capped: bool = False  # whether the value is what it counts as, not its own

    @property
    def ended(self) -> bool:
        """Whether it is evidence on its arm: not if it failed, was interrupted or still runs."""
        return self.status in SETTLED

    @property
    def diverged(self) -> bool:
        return self.status == DIVERGED or (self.ended and not self.measured)

    @property
    def bad(self) -> bool:
        return self.diverged or (self.ended and self.stuck)

    @property
    def measured(self) -> bool:
        return self.value is not None and abs(self.value) < HUGE


def outcome(arm: str, seed: int, summary: Mapping[str, Any], metric: Metric) -> Outcome:
    """Read an outcome from a summary. A run that finished without a finite value has diverged."""
    values = summary.get("metrics") or {}
    value, loss = number(values.get(metric.name)), number(values.get("val/loss"))
    status = str(summary.get("status") or MISSING)
    if status == FINISHED and value is None:
        status = DIVERGED
    stuck = (
        metric.unigram is not None
        and loss is not None
        and baselines.stuck(loss, unigram_nats(summary))
    )
    return Outcome(arm, seed, value, status, stuck)


def unigram_level(summaries: Iterable[Mapping[str, Any]], metric: Metric) -> float | None:
    """The value that a run counts as which learned nothing; None where that is unknown."""
    if metric.unigram is None:
        return metric.diverged
    known = [level for summary in summaries if (level := metric.unigram(summary)) is not None]
    return max(known, default=None) if metric.lower_is_better else min(known, default=None)


def settled(
    outcomes: Iterable[Outcome], cap: float | None, lower_is_better: bool = True
) -> list[Outcome]:
    """The outcomes in order, each with the value that it counts as; unended runs stay as they are.

    `cap` is the value of a run that learned nothing (the loss of the unigram model), or None.
    Without it, diverged runs have no value if every run diverged. Settling twice, also a part of
    the runs, changes nothing.
    """
    worse = max if lower_is_better else min
    runs = list(outcomes)
    for place, run in enumerate(runs):
        if run.bad and not run.diverged and cap is not None:
            assert run.value is not None
            counted = worse(run.value, cap)
            runs[place] = replace(run, value=counted, capped=run.capped or counted != run.value)
    known = [run.value for run in runs if run.ended and run.value is not None and run.measured]
    if cap is not None:
        known.append(cap)
    worst = float(worse(known)) if known else None
    return [
        replace(run, value=worst, status=DIVERGED, capped=True) if run.diverged else run
        for run in runs
    ]


@dataclass
class Table:
    """The values that the ended runs count as, by arm and seed."""

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    bad: dict[str, set[int]] = field(default_factory=dict)  # diverged or stuck
    capped: dict[str, set[int]] = field(default_factory=dict)  # counted at a value not their own
    missing: dict[str, Counter[str]] = field(default_factory=dict)
    note: str | None = None  # on the bad runs

    def mean(self, arm: str) -> float | None:
        """The mean over all ended runs of an arm, as it is shown everywhere."""
        values = self.values.get(arm)
        return math.fsum(values.values()) / len(values) if values else None

    def mark(self, *arms: str) -> str:
        """The mark of a figure from these arms; empty if every run of them learned something."""
        return mark(any(self.bad.get(arm) for arm in arms))


def tabulate(outcomes: Iterable[Outcome], cap: float | None, lower_is_better: bool = True) -> Table:
    """Settle outcomes and arrange them by arm and seed.

    Raises ZooError where a seed is there twice, or where no value is known for diverged runs.
    """
    if cap is not None and not math.isfinite(cap):
        raise ZooError(f"cap={cap}: give the loss of the unigram model, a finite number")
    runs = settled(outcomes, cap, lower_is_better)
    if not runs:
        raise ZooError("no runs: there is nothing to compare")
    if lost := sorted({run.arm for run in runs if run.diverged and run.value is None}):
        raise ZooError(
            f"every run diverged ({', '.join(lost)}), and no value is known for them: give cap, the"
            " loss of the unigram model"
        )
    return arranged(runs, cap)


def arranged(runs: Iterable[Outcome], cap: float | None) -> Table:
    """Arrange settled outcomes by arm and seed."""
    known = sorted(runs, key=lambda run: (run.arm, run.seed))
    table = Table(note=footnote(known, cap))
    for run in known:
        values = table.values.setdefault(run.arm, {})
        bad = table.bad.setdefault(run.arm, set())
        capped = table.capped.setdefault(run.arm, set())
        missing = table.missing.setdefault(run.arm, Counter())
        if not run.ended:
            missing[run.status] += 1
        elif run.seed in values:
            raise ZooError(f"{run.arm} has two runs of seed {run.seed}: a seed counts once")
        elif run.value is not None:
            values[run.seed] = float(run.value)
        if run.bad:
            bad.add(run.seed)
        if run.capped:
            capped.add(run.seed)
    return table


def footnote(runs: Sequence[Outcome], cap: float | None) -> str | None:
    """Explain the mark: how many runs of which arms learned nothing, and what each counts as."""
    bad = [run for run in runs if run.bad]
    if not bad:
        return None
    diverged = Counter(run.arm for run in bad if run.diverged)
    stuck = Counter(run.arm for run in bad if not run.diverged)
    sentences = []
    if stuck:
        level = f"at the unigram level ({shown(cap)}), or at its own value where that is worse"
        sentences.append(
            f"{_counts(stuck)} stuck, no better than the tokens' frequencies: each counts {level}"
        )
    if diverged:
        value = next(run.value for run in bad if run.diverged)
        counted = "" if value is None else f": each counts at {shown(value)}, {_source(value, cap)}"
        sentences.append(f"{_counts(diverged)} diverged{counted}")
    return f"{MARK} With runs that learned nothing. {'; '.join(sentences)}. None is dropped."


def _counts(arms: Counter[str]) -> str:
    return ", ".join(f"{number} of {arm}" for arm, number in sorted(arms.items()))


def _source(value: float, cap: float | None) -> str:
    if value == cap:
        return "what learned nothing counts as"
    beyond = "" if cap is None else f", which is worse than the unigram level ({shown(cap)})"
    return f"the worst that another run counts as{beyond}"


def mark(bad: bool) -> str:
    return f" {MARK}" if bad else ""


def signed(number: float) -> str:
    return (f"{number:+.4f}" if abs(number) < LARGE else f"{number:+,.0f}").replace("-", "−")


def shown(number: float | None) -> str:
    """A value of a metric, whose unit may make it large."""
    if number is None:
        return "–"
    return f"{number:.4f}" if abs(number) < LARGE else f"{number:,.0f}"
