"""Refuse overrides that cannot be meant, and say what probably was, better than composing can."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import Any

from hydra.conf import HydraConf
from hydra.core.override_parser.types import Override

from zoo.config import groups, presets, suggestions
from zoo.config.differences import Config
from zoo.config.overrides import parse
from zoo.errors import ZooError, command, did_you_mean
from zoo.utils import extras

OF_A_STUDY = ("study", "plan_only", "wandb_sweep", "accept", "arm")


def check_overrides(overrides: Sequence[str], compose: Callable[[Sequence[str]], Config]) -> None:
    """Refuse the first override that no run can have; `compose` gives the configuration of the
    rest.
    """
    menu = groups.menu()
    keys = [*menu, "callbacks", "seed", "resume", "changing"]
    extended = any(word.startswith(("hydra.searchpath", "+hydra.searchpath")) for word in overrides)
    for word in map(parse, overrides):
        head = word.key_or_group.split(".")[0].split("@")[0]
        if word.is_sweep_override():
            raise ZooError(f"{word.input_line} lists several values; add -m to run each")
        _check_hydra(word)
        if word.is_add() or head.split("/")[0] == "hydra":
            continue
        _refuse_elsewhere(word, head)
        if head not in keys and head.split("/")[0] not in keys:
            others = [
                other for other in overrides if not parse(other).key_or_group.startswith(head)
            ]
            hint = suggestions.instead(head, keys, compose, others)
            raise ZooError(f"unknown option {head!r} in {word.input_line!r}{hint}")
        if word.is_delete() and "." in word.key_or_group:
            raise ZooError(
                f"{word.input_line}: an option cannot be taken away, only changed: write"
                f" {word.key_or_group}=..."
            )
        if head in menu and word.key_or_group == head and not extended:
            _check_choice(word, menu[head])


def _refuse_elsewhere(word: Override, head: str) -> None:
    """Refuse what is given in another place: inside a component, or to another command."""
    if head in OF_A_STUDY:
        about = "is many runs" if head == "study" else "is about a study"
        raise ZooError(
            f"{word.input_line} {about}: {command('ablations.run', str(word.input_line))}"
        )
    key = groups.word_for(head)
    if key != head:
        raise ZooError(
            f"{head} is chosen inside another part: write {key}=... instead of {word.input_line!r}"
        )


def _check_choice(word: Override, known: Sequence[str]) -> None:
    group = word.key_or_group
    may_be_null = groups.defaults().get(group, "") is None
    for choice in presets.picks(word):
        if choice not in known and not (choice == "null" and may_be_null):
            raise ZooError(f"{group}={choice}: no such {group}{did_you_mean(choice, known)}")


def _check_hydra(word: Override) -> None:
    """Refuse keys of Hydra's that there are not: with a + it takes any, and never reads it."""
    key = word.key_or_group
    if key in ("hydra.run.dir", "hydra.sweep.dir") and not word.value():
        raise ZooError(f"{word.input_line} names no folder: write {key}=FOLDER")
    if key == "hydra/launcher":
        extras.need_launcher(str(word.value()))
    head, *path = key.split(".")
    if head != "hydra":
        return
    node: Any = HydraConf
    for name in path:
        if not dataclasses.is_dataclass(node):
            return  # a free mapping, as hydra.job.env_set
        known = [field.name for field in dataclasses.fields(node)]
        if name not in known:
            raise ZooError(
                f"{word.input_line}: {head} has no option {name!r}{did_you_mean(name, known)}"
            )
        head = f"{head}.{name}"
        node = typing.get_type_hints(node)[name]
