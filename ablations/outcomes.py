"""What a run counts as, whatever became of it: the one rule for runs that diverged or are stuck, and the one footnote.

A run that is stuck at the unigram level counts at that level, or at its own value where that is worse. A run that diverged
has no value: it counts at the unigram level, or at the worst that any other run counts as, where that is worse. So none is
dropped, and none is made better than it was.
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

LARGE = 1000  # from which on a number needs no decimals
MARK = "†"  # of whatever has such a run in it


@dataclass(frozen=True)
class Outcome:
    """How one run ended. Without a (finite) value, diverged or stuck, it is an outcome like any other, and never dropped."""

    arm: str
    seed: int
    value: float | None
    status: str = FINISHED
    stuck: bool = False
    capped: bool = False  # whether the value is not its own, but what it counts as

    @property
    def ended(self) -> bool:
        """Whether it says something of its arm: a run that failed, was interrupted or still trains does not."""
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
    """What a summary says of a run: one that finished without a finite value has diverged, whatever it says of itself."""
    found = summary.get("metrics") or {}
    value, loss = number(found.get(metric.name)), number(found.get("val/loss"))
    status = str(summary.get("status") or MISSING)
    stuck = (
        metric.unigram is not None
        and loss is not None
        and baselines.stuck(loss, unigram_nats(summary))
    )
    return Outcome(
        arm, seed, value, DIVERGED if status == FINISHED and value is None else status, stuck
    )


def unigram_level(summaries: Iterable[Mapping[str, Any]], metric: Metric) -> float | None:
    """What a run counts as that learned nothing, the same for all; None where no value is known for that."""
    if metric.unigram is None:
        return metric.diverged
    known = [level for summary in summaries if (level := metric.unigram(summary)) is not None]
    return max(known, default=None) if metric.lower_is_better else min(known, default=None)


def settled(
    outcomes: Iterable[Outcome], cap: float | None, lower_is_better: bool = True
) -> list[Outcome]:
    """The outcomes in their order, each with the value that it counts as; those that did not end as they are.

    `cap` is the value of what learned nothing (the loss of the unigram model), None where none is known. Where every run
    diverged and there is no cap, nothing is known to count for them. What is settled stays so, also in a part of the runs.
    """
    worse = max if lower_is_better else min
    runs = list(outcomes)
    for place, run in enumerate(runs):
        if run.bad and not run.diverged and cap is not None:
            assert run.value is not None
            counted = worse(run.value, cap)
            runs[place] = replace(run, value=counted, capped=run.capped or counted != run.value)
    seen = [run.value for run in runs if run.ended and run.value is not None and run.measured] + (
        [] if cap is None else [cap]
    )
    worst = float(worse(seen)) if seen else None
    return [
        replace(run, value=worst, status=DIVERGED, capped=True) if run.diverged else run
        for run in runs
    ]


@dataclass
class Table:
    """The values that the runs count as that ended, by arm and seed, in an order of its own."""

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    bad: dict[str, set[int]] = field(default_factory=dict)  # diverged or stuck
    capped: dict[str, set[int]] = field(
        default_factory=dict
    )  # of those, at a value that is not their own
    missing: dict[str, Counter[str]] = field(default_factory=dict)
    note: str | None = None  # of those that are bad

    def mean(self, arm: str) -> float | None:
        """The mean of an arm over all its runs that ended, as it is shown everywhere."""
        values = self.values.get(arm)
        return math.fsum(values.values()) / len(values) if values else None

    def mark(self, *arms: str) -> str:
        """The mark of what was computed from these arms, where one has runs that learned nothing."""
        return mark(any(self.bad.get(arm) for arm in arms))


def tabulate(outcomes: Iterable[Outcome], cap: float | None, lower_is_better: bool = True) -> Table:
    """Outcomes by arm and seed, as what they count. Raises ZooError where a run counts twice or has no value to take."""
    if cap is not None and not math.isfinite(cap):
        raise ZooError(f"cap={cap}: give the loss of the unigram model, a finite number")
    runs = settled(outcomes, cap, lower_is_better)
    if not runs:
        raise ZooError("no runs: there is nothing to compare")
    if lost := sorted({run.arm for run in runs if run.diverged and run.value is None}):
        raise ZooError(
            f"every run diverged ({', '.join(lost)}), and no value is known that would count for them: give cap, the"
            " loss of the unigram model"
        )
    return arranged(runs, cap)


def arranged(runs: Iterable[Outcome], cap: float | None) -> Table:
    """Settled outcomes by arm and seed."""
    known = sorted(runs, key=lambda run: (run.arm, run.seed))
    table = Table(note=footnote(known, cap))
    for run in known:
        values, bad = table.values.setdefault(run.arm, {}), table.bad.setdefault(run.arm, set())
        capped, missing = (
            table.capped.setdefault(run.arm, set()),
            table.missing.setdefault(run.arm, Counter()),
        )
        if not run.ended:
            missing[run.status] += 1
        elif run.seed in values:
            raise ZooError(f"{run.arm} has two runs of seed {run.seed}: a seed counts once")
        elif run.value is not None:
            values[run.seed] = float(run.value)
        bad |= {run.seed} if run.bad else set()
        capped |= {run.seed} if run.capped else set()
    return table


def footnote(runs: Sequence[Outcome], cap: float | None) -> str | None:
    """What the mark stands for: how many runs of which arms learned nothing, and what each counts as."""
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
    return "–" if number is None else f"{number:.4f}" if abs(number) < LARGE else f"{number:,.0f}"
