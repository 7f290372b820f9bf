"""List the runs that a command asks for: one, or the product of the values that its overrides
list.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override, RangeSweep

from zoo.config import groups, presets
from zoo.config.compose import compose, composing
from zoo.config.differences import Config
from zoo.config.overrides import parse
from zoo.errors import ZooError

MOST_RUNS = 10_000  # of one override


def given_overrides(arguments: Namespace) -> list[str]:
    """Return the overrides of a command, with its --config-dir as a place where Hydra searches."""
    overrides = list(arguments.overrides)
    if arguments.config_dir:
        overrides.append(f"hydra.searchpath=[file://{Path(arguments.config_dir).resolve()}]")
    return overrides


def jobs(arguments: Namespace) -> Iterator[tuple[list[str], Config]]:
    """Yield the overrides and the configuration of each run of a command.

    Another sweeper than Hydra's own decides as it goes: its jobs are checked as they start.
    """
    overrides = given_overrides(arguments)
    if not arguments.multirun:
        yield overrides, compose(overrides)
        return
    if any(parse(word).key_or_group == "hydra/sweeper" for word in overrides):
        return
    with composing() as compose_one:
        # A dict, since the last of two overrides of one key counts.
        values = {word.get_key_element(): _values(word) for word in map(_checked, overrides)}
        for job in itertools.product(*values.values()):
            yield list(job), compose_one(job)


def _values(word: Override) -> list[str]:
    """Return the overrides of one value each that an override stands for, as Hydra's sweeper
    does.
    """
    key = word.get_key_element()
    if not word.is_sweep_override():
        return [f"{key}={word.get_value_element_as_str()}"]
    if not word.is_discrete_sweep():
        raise ZooError(f"{word.input_line} lists no values that can be counted")
    return [f"{key}={value}" for value in word.sweep_string_iterator()]


def _checked(text: str) -> Override:
    """Parse an override of a sweep, and refuse one that lists nothing, or more than anyone waits
    for.
    """
    word = parse(text)
    word.config_loader = GlobalHydra.instance().config_loader()  # which a glob looks into
    if not word.is_sweep_override():
        return word
    span = word.value()
    if isinstance(span, RangeSweep):
        start, stop, step = (end or 0 for end in (span.start, span.stop, span.step))
        if not step or not 0 < (stop - start) / step <= MOST_RUNS:
            raise ZooError(
                f"{text} must name from 1 to {MOST_RUNS:,} values, as in"
                f" {word.key_or_group}=range(0,3)"
            )
    elif word.is_discrete_sweep() and not any(True for _ in word.sweep_iterator()):
        raise ZooError(f"{text} names no value: there is nothing to run")
    if word.key_or_group in groups.defaults() and "null" in presets.picks(word):
        raise ZooError(
            f"{text}: null takes no part in a sweep; start one without {word.key_or_group}=..."
        )
    return word
