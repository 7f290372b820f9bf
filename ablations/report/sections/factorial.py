"""Main effects, interactions, simple effects and Shapley values of a crossed design."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ablations import design, stats
from ablations.report import figures, wording
from ablations.report.html import Part, Picture, Section, Table
from ablations.report.sections.parts import estimates
from ablations.results import Results, judging
from ablations.stats import Comparison, Factorial
from zoo.errors import ZooError

Sets = dict[frozenset[str], list[float]]


Values = Mapping[str, Mapping[int, float]]  # of each arm, by seed


Levels = Mapping[str, Mapping[str, str]]  # of each arm, by factor


ROMAN = {3: "III", 4: "IV", 5: "V", 6: "VI", 7: "VII", 8: "VIII"}


Pair = tuple[str, str, dict[tuple[str, str], float]]  # two factors, the mean at their levels
MOST_PAIRS = 6  # of factors, whose interaction is drawn


def factorial(results: Results, compared: Comparison) -> Section | None:
    """Main effects and interactions; of two choices each, also what each factor is worth over all
    orders of adding it.
    """
    if not judging.crossed(results):
        return None
    kind, levels = results.study["design"], judging.levels(results)
    parts: list[Part] = [
        "A main effect is that of a choice against its factor's first one, averaged over the other"
        " factors; an interaction is"
        " how much one effect changes with the other factor. Each seed gives one of each, by least"
        " squares over its arms, and"
        " the interval is a t interval over the seeds; p after Holm's correction over this table."
    ]
    try:
        found = judging.factorial(results, compared)
    except ZooError as error:
        return Section("Main effects and interactions", [f"Not estimated: {error}."])
    if len(found.seeds) < stats.FEWEST:
        parts.append(f"Exploratory: fewer than {stats.FEWEST} seeds per arm.")
    if len(found.seeds) < max(compared.runs.values()):
        parts.append(f"Of the seeds that ended in every arm: {', '.join(map(str, found.seeds))}.")
    if kind == "fractional" and (words := design.resolution(len(next(iter(levels.values()))))):
        parts.append(_aliasing(words, any(" = " in one.name for one in found.effects)))
    values, sign = results.table.values, results.table.mark(*levels)
    parts += [
        *wording.dependent(found, compared),
        _main(found, compared.alpha),
        Picture(
            figures.estimates(found.effects, compared.margin, f"effect in {results.measure.unit}")
        ),
        Picture(figures.interactions(furthest_pairs(values, levels), figures.axis(results) + sign)),
    ]
    if found.simple:
        parts += [
            "A simple effect is that of a choice against its factor's first one within one choice"
            " of another factor,"
            " averaged over the rest: what to read where the two interact. Intervals are of each"
            " by itself; p after Holm's"
            " correction over this table.",
            estimates("simple effect", found.simple),
        ]
    if found.constant:
        parts.append(
            f"The same in every seed, so that there is no interval to give:"
            f" {', '.join(found.constant)}."
        )
    try:
        worth = stats.shapley(_sets(values, levels, results.baseline))
    except ZooError:
        worth = ()
    if worth:
        parts += [
            "What each factor's second choice is worth, averaged over every order of adding the"
            " factors (Shapley 1953):"
            " unlike the steps of one ladder, these do not depend on an order, and sum to the"
            " whole difference.",
            estimates("factor", [replace(one, capped=bool(sign)) for one in worth]),
        ]
    return Section("Main effects and interactions", parts)


def _aliasing(resolution: int, mixed: bool) -> str:
    """What a fractional design of a resolution cannot tell apart."""
    sentence = (
        f"A fraction of resolution {ROMAN.get(resolution, resolution)}: each main effect is aliased"
        f" with interactions of {resolution - 1} factors and more, which are taken to be zero. "
    )
    if mixed:
        return sentence + (
            "Interactions of two factors that it cannot tell apart stand as one, with = between"
            " them."
        )
    return sentence + "Interactions of two are aliased with interactions of three and more."


def _main(found: Factorial, alpha: float) -> Table:
    """Main effects and interactions; beside a main effect, what it depends on."""
    table, partners = estimates("effect", found.effects), dict[str, dict[str, None]]()
    for one in found.interacting(alpha):
        names = [f"{factor}={level}" for factor, level in found.parts[one.name]]
        for name in names:
            partners.setdefault(name, {}).update(
                dict.fromkeys(other for other in names if other != name)
            )
    if not partners:
        return table
    rows = [[*row, ", ".join(partners.get(row[0], ())) or "–"] for row in table.rows]
    return Table((*table.columns, "not by itself: depends on"), rows)


def furthest_pairs(values: Values, levels: Levels) -> list[Pair]:
    """The mean at each two levels of each two factors; those that are furthest from additive
    first.
    """
    sized = []
    for one, two in itertools.combinations(next(iter(levels.values())), 2):
        groups: dict[tuple[str, str], list[float]] = {}
        for arm, at in levels.items():
            groups.setdefault((at[one], at[two]), []).extend(values.get(arm, {}).values())
        means = {key: float(np.mean(found)) for key, found in groups.items() if found}
        sized.append((-_non_additivity(means), one, two, means))
    sized.sort(key=lambda row: row[0])
    return [(one, two, means) for _, one, two, means in sized[:MOST_PAIRS]]


def _non_additivity(means: Mapping[tuple[str, str], float]) -> float:
    """The largest distance of a mean from the sum of its row's and its column's effect."""
    rows: dict[str, list[float]] = {}
    columns: dict[str, list[float]] = {}
    for (row, column), mean in means.items():
        rows.setdefault(row, []).append(mean)
        columns.setdefault(column, []).append(mean)
    centre = np.mean(list(means.values()))
    return max(
        float(abs(mean - np.mean(rows[row]) - np.mean(columns[column]) + centre))
        for (row, column), mean in means.items()
    )


def _sets(values: Values, levels: Levels, baseline: str) -> Sets:
    """The values of each set of factors at their second choice, in the seeds that ended in all of
    them.
    """
    first = levels[baseline]
    seeds = sorted(set.intersection(*(set(values[arm]) for arm in levels)))
    changed = {
        arm: frozenset(f"{axis}={level}" for axis, level in at.items() if level != first[axis])
        for arm, at in levels.items()
    }
    found = {names: [values[arm][seed] for seed in seeds] for arm, names in changed.items()}
    if len(frozenset().union(*found)) != len(first) or len(found) != 2 ** len(first):
        raise ZooError("not every set of factors was run")
    return found
