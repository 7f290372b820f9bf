"""From a study to its arms: every combination that the design asks for, each checked before the first run."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import xor
from typing import Any

from ablations.study import Study, merged
from zoo import config as configuration
from zoo.config import Config
from zoo.errors import ZooError, did_you_mean

Levels = dict[str, str]  # factor -> the name of its choice


@dataclass(frozen=True)
class Arm:
    name: str  # as it is written
    folder: str  # below the study's
    words: list[str]  # all that its runs are told, but for the seed
    levels: Levels
    differs: list[str]  # from the baseline
    matched: str = ""  # what was changed so that budgets match


def arms(study: Study) -> list[Arm]:
    """The arms of a study, the one that the others are compared with first. Raises ZooError for a design that has none."""
    if study.design == "arms":
        named = [(name, {"arm": name}, words) for name, words in study.arms.items()]
    else:
        axes = _axes(study)
        named = [
            (
                name,
                levels,
                [
                    word
                    for factor, choice in levels.items()
                    for word in study.factors[factor][choice]
                ],
            )
            for name, levels in _designs(study.design, axes)
        ]
    told = [
        (name, levels, merged(study.baseline, study.common, words)) for name, levels, words in named
    ]
    kept = [
        arm for arm in told if not any(set(words) <= set(arm[2]) for words in study.constraints)
    ]
    words = {word for _, _, words in told for word in words}
    for word in (word for rule in study.constraints for word in rule):
        if word not in words:
            raise ZooError(
                f"study {study.name}: constraints: no arm is told {word}{did_you_mean(word, sorted(words))}"
            )
    if told and told[0] not in kept:
        raise ZooError(
            f"study {study.name}: the constraints rule out the baseline: {' '.join(told[0][2])}"
        )
    if study.design == "fractional" and len(kept) < len(told):
        raise ZooError(
            f"study {study.name}: constraints take runs out of a fraction, which would confound effects:"
            " use design: factorial"
        )
    if len(kept) < 2:
        source = "arms" if study.design == "arms" else "factors"
        raise ZooError(
            f"study {study.name} is empty: {study.design} over these {source} leaves {len(kept)} arms, and a"
            " comparison needs two"
        )
    names = [name for name, _, _ in kept]
    if odd := [name for name in names if re.search(r"[\x00-\x1f\x7f]", name)]:
        raise ZooError(
            f"study {study.name}: the name {odd[0]!r} has a line break or another control character: leave it out"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise ZooError(
            f"study {study.name} has two arms of the name {twice[0]!r}: name the choices"
        )
    found = [
        Arm(name, folder, words, levels, _differs(words, kept[0][2]))
        for (name, levels, words), folder in zip(kept, folders(names), strict=True)
    ]
    for arm in study.expected:
        if arm not in [arm.name for arm in found]:
            raise ZooError(
                f"study {study.name}: expected.{arm}: no such arm{did_you_mean(arm, [arm.name for arm in found])}"
            )
    return found


def _axes(study: Study) -> list[list[Levels]]:
    """What varies by itself: a factor, or several that vary together; each as its levels, the baseline's first."""
    together = {factor: pair for pair in study.pairs for factor in pair}
    groups = [together.get(factor, [factor]) for factor in study.factors]
    unique = [group for number, group in enumerate(groups) if group not in groups[:number]]
    return [
        [
            dict(zip(group, level, strict=True))
            for level in zip(*(study.factors[name] for name in group), strict=True)
        ]
        for group in unique
    ]


def _designs(design: str, axes: list[list[Levels]]) -> Iterator[tuple[str, Levels]]:
    first, last = ([axis[end] for axis in axes] for end in (0, -1))
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
    else:
        if design == "fractional" and any(len(axis) != 2 for axis in axes):
            raise ZooError(
                "a fractional design needs factors of two choices each: use design: factorial"
            )
        rows = (
            fraction(len(axes))
            if design == "fractional"
            else itertools.product(*(range(len(axis)) for axis in axes))
        )
        for row in rows if axes else ():
            levels = [axis[which] for axis, which in zip(axes, row, strict=True)]
            yield " ".join(map(_named, levels)) if any(row) else "baseline", _union(levels)


def generators(factors: int) -> tuple[int, list[tuple[int, ...]]]:
    """How many factors are free in a fractional design, and of which of these each other factor is the sum (mod 2).

    Below five, all are free. Then, a single other factor is the sum of all the free ones (from five, resolution V); several are
    sums of odd numbers of three or more, so that every word of the defining relation is even, and none has two letters:
    resolution IV.
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
    """The runs of a two-level design as 0 and 1, all of them or a fraction of resolution IV or more; the first is all 0."""
    free, sums = generators(factors)
    return [
        (*row, *(reduce(xor, (row[place] for place in places)) for places in sums))
        for row in itertools.product((0, 1), repeat=free)
    ]


def resolution(factors: int) -> int | None:
    """The length of the shortest word of the defining relation; None where nothing is confounded."""
    free, sums = generators(factors)
    words = [frozenset(places) | {free + number} for number, places in enumerate(sums)]
    products = (
        reduce(frozenset.symmetric_difference, some)
        for size in range(1, len(words) + 1)
        for some in itertools.combinations(words, size)
    )
    return min(map(len, products), default=None)


def checked(study: Study, found: Sequence[Arm], extra: Sequence[str] = ()) -> list[Config]:
    """Each arm's configuration. Raises ZooError naming the arm that cannot run, or that is another one once more."""
    from zoo.training import preflight

    configs: list[Config] = []
    known: dict[str, str] = {}
    with configuration.composing() as compose:
        for arm in found:
            with naming(arm):
                config = compose([*arm.words, *extra])
                preflight.refuse_meaningless(config)
            for group in ("data", "tokenizer"):
                if config[group] != (configs or [config])[0][group]:
                    raise ZooError(
                        f"study {study.name}: arms {found[0].name} and {arm.name} differ in their {group}: their"
                        " losses are of different things, not to be compared"
                    )
            same = known.setdefault(repr(config), arm.name)
            if same != arm.name:
                raise ZooError(
                    f"study {study.name}: arms {same} and {arm.name} are the same run: leave one out"
                )
            configs.append(config)
    return configs


class naming:
    """Says of which arm a mistake is."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ZooError):
            raise ZooError(f"arm {self.arm.name}: {error}") from error


def with_words(arm: Arm, words: Iterable[str], matched: str) -> Arm:
    return replace(arm, words=merged(arm.words, list(words)), matched=matched)


def _union(levels: Iterable[Levels]) -> Levels:
    return {factor: choice for level in levels for factor, choice in level.items()}


def _named(level: Mapping[str, str]) -> str:
    """A choice by its own words, or where it has another name, by its factor and that."""
    return " ".join(
        choice if "=" in choice else f"{factor}={choice}" for factor, choice in level.items()
    )


def _differs(words: Sequence[str], base: Sequence[str]) -> list[str]:
    keys = {word.split("=", 1)[0] for word in words}
    gone = [f"no {word}" for word in base if word.split("=", 1)[0] not in keys]
    return [word for word in words if word not in base] + gone


def folders(names: Sequence[str]) -> list[str]:
    """A folder's name for each of these names, distinct also where a file system does not tell case."""
    told = [safe(name) for name in names]
    plain = [folder.casefold() for folder in told]
    return [
        folder
        if folder and plain.count(folder.casefold()) == 1
        else f"{folder[:72]}_{_digest(name)}"
        for name, folder in zip(names, told, strict=True)
    ]


def safe(name: str) -> str:
    """A name that any file system takes, and Hydra between quotes."""
    safe = re.sub(r"[^\w.+=,-]+", "_", name, flags=re.ASCII).strip("_.")
    return safe if len(safe) <= 80 else f"{safe[:72]}_{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:6]
