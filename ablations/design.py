"""Make the arms of a study: every combination its design asks for, each checked before it runs."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import xor
from typing import NamedTuple

from ablations.study import Study, merged
from zoo import config as configuration
from zoo.config import Config
from zoo.errors import ZooError, did_you_mean

Levels = dict[str, str]  # factor -> the name of its choice


@dataclass(frozen=True)
class Arm:
    """One of the variants that a study compares. Its fields are the columns of study.json."""

    name: str  # as the user wrote it
    folder: str  # below the study's
    words: list[str]  # the overrides of its runs, without the seed
    levels: Levels
    differs: list[str]  # its overrides that the baseline does not have
    matched: str = ""  # the option that was changed to match budgets


class _Combination(NamedTuple):
    """An arm of the design, before it has a folder."""

    name: str
    levels: Levels
    overrides: list[str]


def arms(study: Study) -> list[Arm]:
    """The arms of a study, the baseline first. Raises ZooError for a design that has none."""
    designed = list(_combinations(study))
    allowed = [
        arm
        for arm in designed
        if not any(set(rule) <= set(arm.overrides) for rule in study.constraints)
    ]
    _check_constraints(study, designed, allowed)
    if len(allowed) < 2:
        source = "arms" if study.design == "arms" else "factors"
        number = "1 arm" if len(allowed) == 1 else f"{len(allowed)} arms"
        raise ZooError(
            f"study {study.name} is empty: {study.design} over these {source} leaves {number}, and"
            " a comparison needs two"
        )
    names = [arm.name for arm in allowed]
    _check_names(study, names)
    base = allowed[0].overrides
    return [
        Arm(arm.name, folder, arm.overrides, arm.levels, _differs(arm.overrides, base))
        for arm, folder in zip(allowed, folders(names), strict=True)
    ]


def _combinations(study: Study) -> Iterator[_Combination]:
    if study.design == "arms":
        for name, overrides in study.arms.items():
            all_overrides = merged(study.baseline, study.common, overrides)
            yield _Combination(name, {"arm": name}, all_overrides)
        return
    for name, levels in _designs(study.design, _axes(study)):
        chosen = [study.factors[factor][choice] for factor, choice in levels.items()]
        yield _Combination(name, levels, merged(study.baseline, study.common, *chosen))


def _check_constraints(
    study: Study, designed: Sequence[_Combination], allowed: Sequence[_Combination]
) -> None:
    known = sorted({override for arm in designed for override in arm.overrides})
    for override in itertools.chain.from_iterable(study.constraints):
        if override not in known:
            raise ZooError(
                f"study {study.name}: constraints: no arm has {override}"
                f"{did_you_mean(override, known)}"
            )
    if designed and designed[0] not in allowed:
        raise ZooError(
            f"study {study.name}: the constraints rule out the baseline:"
            f" {' '.join(designed[0].overrides)}"
        )
    if study.design == "fractional" and len(allowed) < len(designed):
        raise ZooError(
            f"study {study.name}: constraints take runs out of a fraction, which would confound"
            " effects: use design: factorial"
        )


def _check_names(study: Study, names: Sequence[str]) -> None:
    for name in names:
        if re.search(r"[\x00-\x1f\x7f]", name):
            raise ZooError(
                f"study {study.name}: the name {name!r} has a line break or another control"
                " character: leave it out"
            )
    for name in names:
        if names.count(name) > 1:
            raise ZooError(
                f"study {study.name} has two arms of the name {name!r}: name the choices"
            )
    for name in study.expected:
        if name not in names:
            raise ZooError(
                f"study {study.name}: expected.{name}: no such arm{did_you_mean(name, names)}"
            )


def _axes(study: Study) -> list[list[Levels]]:
    """What varies independently: a factor, or several that vary together.

    Each axis has its levels, that of the baseline first.
    """
    pair_of = {factor: pair for pair in study.pairs for factor in pair}
    axes: list[list[str]] = []
    for factor in study.factors:
        axis = pair_of.get(factor, [factor])
        if axis not in axes:
            axes.append(axis)
    return [_axis_levels(study, axis) for axis in axes]


def _axis_levels(study: Study, axis: Sequence[str]) -> list[Levels]:
    choices = zip(*(study.factors[factor] for factor in axis), strict=True)
    return [dict(zip(axis, level, strict=True)) for level in choices]


def _designs(design: str, axes: list[list[Levels]]) -> Iterator[tuple[str, Levels]]:
    """The name and the levels of each arm."""
    first = [axis[0] for axis in axes]
    last = [axis[-1] for axis in axes]
    if design == "one_at_a_time":
        yield _named(first[0]) if len(axes) == 1 else "baseline", _union(first)
        for number, axis in enumerate(axes):
            for level in axis[1:]:
                yield _named(level), _union([*first[:number], level, *first[number + 1 :]])
    elif design == "leave_one_out":
        yield "all", _union(last)
        for number, level in enumerate(first):
            yield f"without {' '.join(level)}", _union([*last[:number], level, *last[number + 1 :]])
    elif design == "ladder":
        yield "0 baseline", _union(first)
        for number, level in enumerate(last, 1):
            yield f"{number} {_named(level)}", _union([*last[:number], *first[number:]])
    elif axes:
        for row in _rows(design, axes):
            levels = [axis[place] for axis, place in zip(axes, row, strict=True)]
            yield " ".join(map(_named, levels)) if any(row) else "baseline", _union(levels)


def _rows(design: str, axes: list[list[Levels]]) -> Iterable[tuple[int, ...]]:
    """Which level of each axis, for each arm of a factorial design or a fraction of it."""
    if design == "factorial":
        return itertools.product(*(range(len(axis)) for axis in axes))
    if any(len(axis) != 2 for axis in axes):
        raise ZooError(
            "a fractional design needs factors of two choices each: use design: factorial"
        )
    return fraction(len(axes))


def generators(factors: int) -> tuple[int, list[tuple[int, ...]]]:
    """The number of free factors of a fractional design, and the generators of the others.

    A generator names the free factors whose sum (mod 2) gives a factor. Below five, all factors
    are free. From five, a single other factor is the sum of all the free ones (at five,
    resolution V). Several others are sums of odd numbers of three or more, so that every word of
    the defining relation has an even length, and none has two letters: resolution IV.
    """
    if factors < 5:
        return factors, []
    free = next(free for free in range(3, factors) if 2 ** (free - 1) >= factors)
    if factors == free + 1:
        return free, [tuple(range(free))]
    odd = [
        sums for size in range(3, free + 1, 2) for sums in itertools.combinations(range(free), size)
    ]
    return free, odd[: factors - free]


def fraction(factors: int) -> list[tuple[int, ...]]:
    """The runs of a two-level design as 0 and 1, the first all 0.

    It is the full design, or a fraction of resolution IV or more.
    """
    free, sums = generators(factors)
    runs = []
    for row in itertools.product((0, 1), repeat=free):
        generated = [reduce(xor, (row[factor] for factor in factors)) for factors in sums]
        runs.append((*row, *generated))
    return runs


def resolution(factors: int) -> int | None:
    """The length of the shortest word of the defining relation; None if nothing is confounded."""
    free, sums = generators(factors)
    words = [frozenset(factors) | {free + number} for number, factors in enumerate(sums)]
    products = (
        reduce(frozenset.symmetric_difference, some)
        for size in range(1, len(words) + 1)
        for some in itertools.combinations(words, size)
    )
    return min(map(len, products), default=None)


def checked(study: Study, arms: Sequence[Arm], extra: Sequence[str] = ()) -> list[Config]:
    """Compose each arm's configuration.

    Raises ZooError for an arm that cannot run, or that is the same run as another.
    """
    from zoo.launch import preflight
    from zoo.launch.run_spec import RunSpec

    configs: list[Config] = []
    names: dict[str, str] = {}
    with configuration.composing() as compose:
        for arm in arms:
            with errors_of(arm):
                config = compose([*arm.words, *extra])
                preflight.refuse_meaningless(RunSpec(config))
            configs.append(config)
            for group in ("data", "tokenizer"):
                if config[group] != configs[0][group]:
                    raise ZooError(
                        f"study {study.name}: arms {arms[0].name} and {arm.name} differ in their"
                        f" {group}: their losses are not comparable"
                    )
            same = names.setdefault(repr(config), arm.name)
            if same != arm.name:
                raise ZooError(
                    f"study {study.name}: arms {same} and {arm.name} are the same run: leave one"
                    " out"
                )
    return configs


@contextlib.contextmanager
def errors_of(arm: Arm) -> Iterator[None]:
    """Name the arm in the message of a ZooError."""
    try:
        yield
    except ZooError as error:
        raise ZooError(f"arm {arm.name}: {error}") from error


def with_overrides(arm: Arm, overrides: Sequence[str], matched: str) -> Arm:
    return replace(arm, words=merged(arm.words, overrides), matched=matched)


def _union(levels: Iterable[Levels]) -> Levels:
    return {factor: choice for level in levels for factor, choice in level.items()}


def _named(level: Mapping[str, str]) -> str:
    """Name a choice by its own override; one with another name, by its factor and that name."""
    return " ".join(
        choice if "=" in choice else f"{factor}={choice}" for factor, choice in level.items()
    )


def _differs(overrides: Sequence[str], base: Sequence[str]) -> list[str]:
    keys = {override.split("=", 1)[0] for override in overrides}
    added = [override for override in overrides if override not in base]
    removed = [f"no {override}" for override in base if override.split("=", 1)[0] not in keys]
    return added + removed


def folders(names: Sequence[str]) -> list[str]:
    """A folder name for each name, distinct also on a file system that ignores case."""
    plain = [safe(name) for name in names]
    folded = [folder.casefold() for folder in plain]
    return [
        folder
        if folder and folded.count(folder.casefold()) == 1
        else f"{folder[:72]}_{_digest(name)}"
        for name, folder in zip(names, plain, strict=True)
    ]


def safe(name: str) -> str:
    """A name that any file system takes, and that Hydra takes between quotes."""
    safe = re.sub(r"[^\w.+=,-]+", "_", name, flags=re.ASCII).strip("_.")
    return safe if len(safe) <= 80 else f"{safe[:72]}_{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:6]
