"""Effects that take more than one arm to see: factorials, ladders, documents, trials, compute; and the planning of a study."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ablations.outcomes import Outcome, tabulate
from ablations.stats import POWER, Array, holm, paired_t, seeds_needed, t_power, t_test
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


def documents(paired: ArrayLike, *, alpha: float = 0.05) -> Estimate:
    """The mean difference over (seeds, documents), both of them samples: V = V_seeds + V_documents - V_both.

    Clustered two ways (Cameron, Gelbach and Miller 2011), with the degrees of the smaller side. From one seed it holds for
    these weights only, and says so.
    """
    values = np.asarray(paired, float)
    if values.ndim != 2 or min(values.shape) < 1 or values.shape[1] < 2:
        raise ZooError(
            f"give differences as (seeds, documents), with two documents at least; this is {values.shape}"
        )
    if not np.isfinite(values).all():
        raise ZooError(
            "a document's difference is not a finite number: leave its run out, and say so"
        )
    if not np.ptp(values):
        raise ZooError("the difference is the same in every document: is it the same model?")
    seeds, texts = values.shape
    parts = [values.var(ddof=1) / values.size, values.mean(0).var(ddof=1) / texts]
    if seeds > 1:
        parts.append(values.mean(1).var(ddof=1) / seeds)
    # by sampling error the sum may come out below one of its parts, or below 0
    variance = max(*parts, parts[-1] + parts[1] - parts[0] if seeds > 1 else 0.0)
    mean, se, df = (
        float(values.mean()),
        math.sqrt(variance),
        (min(seeds, texts) if seeds > 1 else texts) - 1,
    )
    reach = float(stats.t.isf(alpha / 2, df)) * se
    notes = () if seeds > 1 else ("one seed: it says nothing of other seeds",)
    return Estimate(
        "documents", mean, mean - reach, mean + reach, float(t_test(mean, se, df)), notes=notes
    )


Parts = tuple[
    tuple[str, str], ...
]  # factor and level, whose name together is that of a main effect


@dataclass(frozen=True)
class Factorial:
    """What the arms of a factorial say of its factors; intervals are over the seeds that ended in every arm."""

    effects: tuple[Estimate, ...]  # main ones, then interactions of two
    simple: tuple[
        Estimate, ...
    ]  # of each level against its factor's first, within each level of each other factor
    parts: Mapping[str, Parts]  # of each interaction, the factors and levels that it is one of
    seeds: tuple[int, ...]
    constant: tuple[
        str, ...
    ]  # those that are the same in every seed, so that they have no interval

    def interacting(self, alpha: float = 0.05) -> tuple[Estimate, ...]:
        """The interactions that are there: the main effects in them are averages over what differs."""
        return tuple(
            one for one in self.effects if one.name in self.parts and (one.p_holm or one.p) <= alpha
        )

    def within(self, interaction: str) -> tuple[Estimate, ...]:
        """The simple effects of its first factor, within each level of the other; none where it is one with another."""
        (factor, level), (other, _), *_ = self.parts[interaction]
        return tuple(
            one for one in self.simple if one.name.startswith(f"{factor}={level} at {other}=")
        )


def factorial(
    outcomes: Iterable[Outcome],
    levels: Mapping[str, Mapping[str, str]],
    *,
    alpha: float = 0.05,
    lower_is_better: bool = True,
    cap: float | None = None,
) -> Factorial:
    """Main effects, two-way interactions and simple effects, each by a paired t over the seeds (Fisher 1935; Box 1961).

    `levels` has the level of each factor by arm; a factor's first level, in the order given, is its reference. A main effect
    is its level minus the reference, averaged over the other factors; an interaction is the difference of two such
    differences; a simple effect is that of a level within one level of another factor, averaged over the rest. Each seed
    gives one of each, by least squares over its arms: so the interval asks for no equal variances, which arms that train
    badly do not have. What a fraction cannot tell apart comes as one estimate, `a:b = c:d`, and without simple effects; a
    main effect that it cannot tell from an interaction is refused.
    """
    table = tabulate(outcomes, cap, lower_is_better)
    unknown = [arm for arm in table.values if arm not in levels]
    if unknown:
        raise ZooError(f"no levels for {', '.join(unknown)}: give those of every arm")
    factors = list(levels[next(iter(table.values))])
    if any(set(levels[arm]) != set(factors) for arm in table.values):
        raise ZooError("every arm gives a level to the same factors")
    arms = [arm for arm, values in table.values.items() if values]
    if not arms:
        raise ZooError("no run has ended: there is nothing to estimate")
    known = {
        factor: list(dict.fromkeys(own[factor] for arm, own in levels.items() if arm in arms))
        for factor in factors
    }
    columns, parts = _columns(arms, levels, known)
    design = np.column_stack([np.ones(len(arms)), *columns.values()])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        raise ZooError(
            "these arms cannot tell all main effects and two-way interactions apart: run more combinations"
        )
    seeds = tuple(sorted(set.intersection(*(set(table.values[arm]) for arm in arms))))
    if len(seeds) < 2:
        raise ZooError(
            f"{len(seeds)} seed{'s' * (len(seeds) != 1)} ended in every arm, which cannot tell effects from chance:"
            " run more seeds"
        )
    values = np.array([[table.values[arm][seed] for seed in seeds] for arm in arms])
    bad = np.array([bool(table.bad[arm] & set(seeds)) for arm in arms])
    weights = dict(zip(columns, np.linalg.pinv(design)[1:], strict=True))
    varying, constant = _estimated(weights, values, bad, alpha)
    simple, no_simple = _estimated(_simple(known, weights), values, bad, alpha)
    if not varying:
        raise ZooError("every run has the same value: there is nothing to estimate")
    return Factorial(varying, simple, parts, seeds, constant + no_simple)


def _columns(
    arms: Sequence[str], levels: Mapping[str, Mapping[str, str]], known: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Array], dict[str, Parts]]:
    """The columns of a design over its arms, and what each interaction is of; aliases are one column."""
    main: dict[str, dict[str, Array]] = {}
    for factor, names in known.items():
        if len(names) < 2:
            raise ZooError(
                f"{factor} has one level only, {names[0]!r}: it has no effect to estimate"
            )
        # centred, so that a main effect is that of the average over the other factors
        main[factor] = {
            name: np.array([(levels[arm][factor] == name) - 1 / len(names) for arm in arms])
            for name in names[1:]
        }
    columns = {
        f"{factor}={name}": column for factor, own in main.items() for name, column in own.items()
    }
    parts: dict[str, Parts] = {}
    for one, two in itertools.combinations(known, 2):
        for (left, x), (right, y) in itertools.product(main[one].items(), main[two].items()):
            name, column = f"{one}={left}:{two}={right}", x * y
            for other, kept in list(columns.items()):
                scaled = column * np.abs(kept).max() / max(np.abs(column).max(), 1e-300)
                if np.allclose(scaled, kept) or np.allclose(scaled, -kept):
                    if other not in parts:
                        raise ZooError(
                            f"these arms cannot tell the effect of {other} from {name}: run more combinations"
                        )
                    both = f"{other} = {'' if np.allclose(scaled, kept) else '-'}{name}"
                    columns = {
                        both if key == other else key: values for key, values in columns.items()
                    }
                    parts[both] = (*parts.pop(other), (one, left), (two, right))
                    break
            else:
                columns[name], parts[name] = column, ((one, left), (two, right))
    return columns, parts


def _simple(known: Mapping[str, Sequence[str]], weights: Mapping[str, Array]) -> dict[str, Array]:
    """The weights of the arms in each level's effect within each level of another factor, where no alias is in it."""
    simple: dict[str, Array] = {}
    for one, two in itertools.permutations(known, 2):
        for name, level in itertools.product(known[one][1:], known[two]):
            effect = f"{one}={name}"
            pairs = {
                other: weights.get(
                    f"{effect}:{two}={other}", weights.get(f"{two}={other}:{effect}")
                )
                for other in known[two][1:]
            }
            if all(pair is not None for pair in pairs.values()):
                simple[f"{effect} at {two}={level}"] = weights[effect] + sum(
                    ((other == level) - 1 / len(known[two])) * np.asarray(pair)
                    for other, pair in pairs.items()
                )
    return simple


def shapley(
    values: Mapping[frozenset[str], Sequence[float]], *, alpha: float = 0.05
) -> tuple[Estimate, ...]:
    """What each rung of a ladder is worth: its step, averaged over every order of the rungs that was run (Shapley 1953).

    `values` has the losses of each set of rungs, seed by seed in one order of seeds; the empty set is the baseline. Each
    seed gives one such average, so that the interval is a t interval over seeds. With all 2^k sets it is over all k! orders;
    a rung whose step was seen only once is refused, as there the order decides.
    """
    rungs = sorted(frozenset().union(*values))
    sizes = {len(runs) for runs in values.values()}
    if frozenset() not in values or frozenset(rungs) not in values:
        raise ZooError(
            "a ladder needs the runs without any of its rungs, and those with all of them"
        )
    if len(sizes) > 1 or min(sizes) < 2:
        raise ZooError("give each set of rungs the same seeds, two at least")
    losses = {rung: np.asarray(runs, float) for rung, runs in values.items()}
    if not all(np.isfinite(runs).all() for runs in losses.values()):
        raise ZooError("a loss is not a finite number: give the cap for a run that diverged")
    up = {
        frozenset[str](): 1
    }  # by how many orders a set is reached from the empty one, and the full one from it
    for size in range(len(rungs)):
        for group in [group for group in losses if len(group) == size and group in up]:
            for after in (group | {rung} for rung in rungs if rung not in group):
                if after in losses:
                    up[after] = up.get(after, 0) + up[group]
    down = {frozenset(rungs): 1}
    for group in sorted(losses, key=len, reverse=True):
        if group not in down:
            down[group] = sum(down.get(group | {rung}, 0) for rung in rungs if rung not in group)
    orders = down[frozenset()]
    if not orders:
        raise ZooError("no order of the rungs was run from the first to the last")
    found = []
    for rung in rungs:
        steps = {
            group: up[group] * down[group | {rung}]
            for group in losses
            if group in up and rung not in group and down.get(group | {rung})
        }
        if len(steps) < 2 and len(rungs) > 1:
            raise ZooError(
                f"the order decides: {rung} was added to one set only, not told from its place: "
                "run the other orders, all 2^k sets at best"
            )
        parts = [
            weight / orders * (losses[group | {rung}] - losses[group])
            for group, weight in steps.items()
        ]
        notes = (
            ()
            if orders == math.factorial(len(rungs))
            else (f"over {orders} of {math.factorial(len(rungs))} orders",)
        )
        found.append(replace(_t_interval(rung, np.sum(parts, axis=0), alpha), notes=notes))
    return _corrected(found)


def power(n: int, arms: int, sd: float, rho: float, effect: float, alpha: float = 0.05) -> float:
    """The chance that n seeds find an effect in one of several arms: noncentral t, sd of differences sd sqrt(2 (1 - rho)).

    At alpha / arms, the first step of Holm's correction, so that it is the least that the primary test has.
    """
    return float(t_power(effect / _spread(arms, sd, rho), n, alpha / arms))


def needed_n(
    arms: int, sd: float, rho: float, effect: float, alpha: float = 0.05, target: float = POWER
) -> int | None:
    """The fewest seeds with that power, never below 5; None above 1000."""
    return seeds_needed(effect, _spread(arms, sd, rho), alpha / arms, above=4, target=target)


def _spread(arms: int, sd: float, rho: float) -> float:
    """The standard deviation of the difference of two arms."""
    if arms < 1 or not sd > 0 or not -1 <= rho < 1:
        raise ZooError(
            f"arms={arms}, sd={sd}, rho={rho}: at least one arm, an sd above 0, and rho below 1"
        )
    return sd * math.sqrt(2 * (1 - rho))


def expected_best(scores: ArrayLike, *, lower_is_better: bool = True) -> Array:
    """The expected best of k = 1..N trials: sum of x_(i) ((i/N)^k - ((i-1)/N)^k), worst first (Dodge et al. 2019)."""
    values = np.sort(np.asarray(scores, float))[:: -1 if lower_is_better else 1]
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ZooError(
            "give a list of finite scores, one a trial; the cap stands for a trial that diverged"
        )
    steps = np.arange(len(values) + 1) / len(values)
    trials = np.arange(1, len(values) + 1)[:, None]
    return np.asarray(np.diff(steps**trials, axis=1) @ values)


def equivalent_compute(baseline: Iterable[tuple[float, float]], loss: float) -> float:
    """The compute at which the baseline has this loss: log compute, linear between runs of separate full schedules.

    `baseline` has pairs of compute and loss. What is not between two of them is not known, and refused.
    """
    curve = np.array(sorted(baseline), float).reshape(-1, 2)
    compute, losses = curve.T
    if len(curve) < 2 or not np.isfinite(curve).all() or compute[0] <= 0:
        raise ZooError(
            "an equivalent compute needs two points of the baseline at least, of finite loss and compute above 0"
        )
    if (np.diff(losses) >= 0).any() or (np.diff(compute) <= 0).any():
        raise ZooError(
            "the baseline's loss does not fall with compute all along: average more seeds at each point"
        )
    if not losses[-1] <= loss <= losses[0]:
        raise ZooError(
            f"a loss of {loss:.4g} is beyond the baseline's, {losses[0]:.4g} to {losses[-1]:.4g}: "
            "run it with more or less compute, as this is not extrapolated"
        )
    return float(np.exp(np.interp(loss, losses[::-1], np.log(compute[::-1]))))


def _t_interval(name: str, values: Array, alpha: float) -> Estimate:
    """A mean over seeds and its t interval; where every seed says the same, there is no error to put on it."""
    if np.ptp(values) <= 1e-12 * max(np.abs(values).max(), 1.0):
        raise ZooError(
            f"{name} changes every seed by the same: there is no variance to make an interval of"
        )
    found = paired_t(values, alpha=alpha)
    return Estimate(name, float(found.mean), float(found.low), float(found.high), float(found.p))


def _estimated(
    weights: Mapping[str, Array], values: Array, bad: Array, alpha: float
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """Each weighted sum of the arms' values (arms, seeds), corrected for all of them; and those that have no interval."""
    found, constant = [], []
    for name, weight in weights.items():
        try:
            one = _t_interval(name, weight @ values, alpha)
        except ZooError:
            constant.append(name)
        else:
            found.append(replace(one, capped=bool(bad[np.abs(weight) > 1e-9].any())))
    return _corrected(found), tuple(constant)


def _corrected(found: Sequence[Estimate]) -> tuple[Estimate, ...]:
    return tuple(
        replace(one, p_holm=p) for one, p in zip(found, holm([one.p for one in found]), strict=True)
    )
