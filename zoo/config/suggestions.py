"""What to write instead: the known word nearest to an unknown one, and the ways out that a run
has not taken yet.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from omegaconf import Container, DictConfig
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from zoo import registry
from zoo.config import schema
from zoo.errors import ZooError, did_you_mean, first_line

Compose = Callable[[Sequence[str]], Mapping[str, Any]]


def options(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of all that can be given in a configuration."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from options(value, f"{prefix}{key}.")
        elif not (prefix and key == "name"):
            yield f"{prefix}{key}"


def instead(word: str, groups: Iterable[str], compose: Compose, others: Sequence[str]) -> str:
    """The end of a sentence about an unknown option: what it probably means, in the configuration
    that the others give.

    That is an option of this name, an option of a component that is not chosen, or the group or
    option with almost this name.
    """
    try:
        config = compose(others)
    except ZooError:  # one wrong override at a time
        config = compose([])
    groups = list(groups)
    found = nearest(word, [*groups, *options(config)], owners_of(word))
    known = f"(the groups are: {', '.join(groups)})"
    return f": did you mean {' or '.join(found)}? {known}" if found else f" {known}"


def nearest(word: str, names: Iterable[str], owners: Sequence[str] = ()) -> list[str]:
    """The dotted names that end in this word, else its owners, else the names that have it as a
    part, or almost.
    """
    by_last: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        by_last.setdefault(name.rpartition(".")[2], []).append(name)
    if word not in by_last and owners:
        return list(owners)
    alike = [last for last in by_last if word in last.split("_") or sorted(word) == sorted(last)]
    best = [word] if word in by_last else alike[:1] or _closest(word, list(by_last))
    return [repr(name) for last in best for name in by_last[last]]


def _closest(word: str, known: Sequence[str]) -> list[str]:
    """Those that have most letters in common with a word, where that is most of them."""
    alike = {other: difflib.SequenceMatcher(None, other, word).ratio() for other in known}
    most = max(alike.values(), default=0.0)
    return [other for other in known if alike[other] == most >= 0.6]


def owners_of(option: str) -> list[str]:
    """Where an option of this name can be given: in a group, or where few of its components have
    it, in these.
    """
    found = [
        f"{node}.{option}"
        for node, made in schema.NODES.items()
        if option in [each.name for each in fields(made)]
    ]
    for group in registry.groups() if option != "name" else ():
        having = [
            name for name, entry in registry.entries(group).items() if option in entry.defaults()
        ]
        found += (
            [f"{group}.{option}"]
            if len(having) > 2
            else [f"{option} of {group}={name}" for name in having]
        )
    return found


def ways(config: Mapping[str, Any], *advice: str) -> str:
    """The ways out that a run has not taken: `residual=pre` is no advice to one that has it."""
    left = [way for way in advice if not _taken(config, way)]
    return " or ".join(filter(None, [", ".join(left[:-1]), *left[-1:]]))


def _taken(config: Mapping[str, Any], way: str) -> bool:
    """Whether a configuration, or a run's choices, has what KEY=VALUE asks for; other advice
    none has.
    """
    key, equals, value = way.partition("=")
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    chosen = node.get("name") if isinstance(node, Mapping) else node
    return bool(equals) and str(chosen) == value


def in_plain_words(error: BaseException) -> str:
    """Hydra's or OmegaConf's complaint; where a key is unknown, with the keys that there are."""
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if (
        isinstance(cause, OmegaConfBaseException)
        and cause.full_key
        and isinstance(cause.parent_node, Container)
    ):
        node = cause.parent_node
        if isinstance(cause, MissingMandatoryValue):
            return f"{cause.full_key} is needed: give {cause.full_key}=..."
        if isinstance(node, DictConfig) and cause.key not in node:
            *path, key = cause.full_key.split(".")
            known = [str(option) for option in node if option != "name"]
            where = f"{'.'.join(path) or 'the configuration'} has no option {key!r}"
            if owners := owners_of(key):
                return (
                    f"{where}: did you mean {' or '.join(owners)}? (there are: {', '.join(known)})"
                )
            return f"{where}{did_you_mean(key, known)}"
        return f"{cause.full_key}: {first_line(cause)}"
    return " ".join(str(error).split())
