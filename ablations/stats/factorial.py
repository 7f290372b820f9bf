"""Main effects, interactions and simple effects of a crossed design."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ablations.outcomes import Outcome, tabulate
from ablations.stats.estimates import Estimate, corrected, t_interval
from ablations.stats.paired_tests import Array
from zoo.errors import ZooError

Parts = tuple[
    tuple[str, str], ...
]  # factor and level, whose name together is that of a main effect


@dataclass(frozen=True)
class Factorial:
    """What the arms of a factorial say of its factors; intervals are over the seeds that ended in
    every arm.
    """

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
        """The interactions that are there: the main effects in them are averages over what
        differs.
        """
        return tuple(
            one for one in self.effects if one.name in self.parts and (one.p_holm or one.p) <= alpha
        )

    def within(self, interaction: str) -> tuple[Estimate, ...]:
        """The simple effects of its first factor, within each level of the other; none where it is
        one with another.
        """
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
    """Main effects, two-way interactions and simple effects, each by a paired t over the seeds
    (Fisher 1935; Box 1961).

    `levels` has the level of each factor by arm; a factor's first level, in the order given, is its
    reference. A main effect is its level minus the reference, averaged over the other factors; an
    interaction is the difference of two such differences; a simple effect is that of a level within
    one level of another factor, averaged over the rest. Each seed gives one of each, by least
    squares over its arms: so the interval asks for no equal variances, which arms that train badly
    do not have. What a fraction cannot tell apart comes as one estimate, `a:b = c:d`, and without
    simple effects; a main effect that it cannot tell from an interaction is refused.
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
            "these arms cannot tell all main effects and two-way interactions apart: run more"
            " combinations"
        )
    seeds = tuple(sorted(set.intersection(*(set(table.values[arm]) for arm in arms))))
    if len(seeds) < 2:
        raise ZooError(
            f"{len(seeds)} seed{'s' * (len(seeds) != 1)} ended in every arm, which cannot tell"
            f" effects from chance:"
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
    """The columns of a design over its arms, and what each interaction is of; aliases are one
    column.
    """
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
                            f"these arms cannot tell the effect of {other} from {name}: run more"
                            f" combinations"
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
    """The weights of the arms in each level's effect within each level of another factor, where no
    alias is in it.
    """
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


def _estimated(
    weights: Mapping[str, Array], values: Array, bad: Array, alpha: float
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """Each weighted sum of the arms' values (arms, seeds), corrected for all of them; and those
    that have no interval.
    """
    found, constant = [], []
    for name, weight in weights.items():
        try:
            one = t_interval(name, weight @ values, alpha)
        except ZooError:
            constant.append(name)
        else:
            found.append(replace(one, capped=bool(bad[np.abs(weight) > 1e-9].any())))
    return corrected(found), tuple(constant)
