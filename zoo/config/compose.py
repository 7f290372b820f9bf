"""Compose configurations from overrides, and finish them as plain, checked values."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import hydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zoo import registry
from zoo.config import presets, schema, suggestions
from zoo.config.checking import check_overrides
from zoo.config.differences import Config
from zoo.config.groups import CONF, chosen, defaults, discover
from zoo.config.overrides import parse
from zoo.errors import ZooError, did_you_mean, first_line

MISTAKES = (HydraException, OmegaConfBaseException, ValueError, OverflowError)


def compose(overrides: Sequence[str] = ()) -> Config:
    """Return the configuration that overrides give, as plain values with nothing to interpolate.

    Raises ZooError for an unknown group, choice or key, a wrong type or a missing value, saying
    what was probably meant.
    """
    with composing() as compose_one:
        return compose_one(overrides)


@contextlib.contextmanager
def composing() -> Iterator[Callable[[Sequence[str]], Config]]:
    """Give a `compose` for many runs."""
    discover()

    def compose_one(overrides: Sequence[str]) -> Config:
        check_overrides(overrides, compose_one)
        overrides = spelled(overrides)
        choosing = [word for word in overrides if not _sets_a_value(parse(word))]
        try:
            composed = _structure(choosing)
            for word in map(parse, overrides):
                if _sets_a_value(word):
                    _apply(word, composed)
            return finished(composed, overrides)
        except ZooError:
            raise
        except MISTAKES as error:
            raise ZooError(suggestions.in_plain_words(error)) from error

    with hydra.initialize_config_dir(str(CONF), job_name="train", version_base="1.3"):
        yield compose_one


@contextlib.contextmanager
def composing_job(overrides: Sequence[str]) -> Iterator[tuple[DictConfig, Config]]:
    """Give what Hydra runs a job by, its own settings included, and the configuration in it."""
    with composing() as compose_one:
        check_overrides(overrides, compose_one)
        spelled_out = spelled(overrides)
        try:
            composed = hydra.compose("config", spelled_out, return_hydra_config=True)
        except (*MISTAKES, TypeError, KeyError, AttributeError):
            compose_one(overrides)  # says it better, as it adds them one by one
            raise
        yield composed, finished(composed, spelled_out)


def _structure(choosing: Sequence[str]) -> DictConfig:
    """Compose the overrides that choose files and components, once for all runs that share them."""
    if any("hydra" in word for word in choosing):
        return hydra.compose("config", list(choosing))  # the files may be others
    known = [entry for group in registry.groups() for entry in registry.entries(group).values()]
    return copy.deepcopy(_composed(tuple(choosing), tuple(known)))


@functools.lru_cache(256)
def _composed(choosing: tuple[str, ...], known: tuple[registry.Entry, ...]) -> DictConfig:
    """Compose once for as long as the same components are known."""
    return hydra.compose("config", list(choosing))


def _sets_a_value(word: Override) -> bool:
    """Whether an override only sets an option, so that it can be applied after composing."""
    is_option = "." in word.key_or_group and "/" not in word.key_or_group and word.package is None
    return is_option and not (word.is_hydra_override() or word.is_add() or word.is_delete())


def _apply(word: Override, composed: DictConfig) -> None:
    key, new = word.key_or_group, word.is_force_add()
    try:
        OmegaConf.update(composed, key, word.value(), merge=True, force_add=new)
    except OmegaConfBaseException:
        raise
    except (TypeError, KeyError, AttributeError) as error:  # a list has no keys, or the like
        raise ZooError(
            f"{word.input_line} does not fit what is there: {first_line(error)}"
        ) from error


def finished(composed: DictConfig, overrides: Sequence[str] = ()) -> Config:
    """Turn what Hydra composed into plain, checked values.

    Shrinks the model where a size says so, and fills in the vocabulary where it was left open:
    the tokenizer's, and what the objective needs beside it. What `overrides` set is kept as it is.
    """
    raw: Any = OmegaConf.to_container(composed, enum_to_str=True)
    raw.pop("hydra", None)
    sizes = raw.pop("size", None) or {}
    given = set(presets.typed(map(parse, overrides)))
    presets.fit(raw, chosen(), given)
    presets.shrink(raw, sizes, given)
    try:
        config: Any = OmegaConf.to_container(
            OmegaConf.create(raw), resolve=True, throw_on_missing=True
        )
    except OmegaConfBaseException as error:
        raise ZooError(suggestions.in_plain_words(error)) from error
    known = [*chosen(), "callbacks", "loader", "trainer", "seed", "resume", "changing"]
    for key in dict.fromkeys([*known, *map(str, config)]):
        if key not in config:
            raise ZooError(f"a run needs a {key}: give {key}=...")
        if key not in known:
            raise ZooError(f"nothing reads {key!r}{did_you_mean(key, known)}")
    for group in chosen():
        config[group] = registry.resolve(group, config[group])
        presets.settle(group, config[group])
    if not isinstance(config["callbacks"], list):
        raise ZooError(
            f"callbacks must be a list, as in callbacks=[mine], not {config['callbacks']!r}"
        )
    config["callbacks"] = [registry.resolve("callback", choice) for choice in config["callbacks"]]
    config |= schema.typed(config)
    schema.check(config)
    if config["arch"]["vocab"] is None:
        tokenizer = registry.build("tokenizer", config["tokenizer"])
        objective = registry.build(
            "objective", config["objective"], tokenizer, config["loader"]["length"]
        )
        config["arch"]["vocab"] = tokenizer.vocab + objective.extra
    return config


def spelled(overrides: Sequence[str]) -> list[str]:
    """Write overrides as Hydra needs them: a mapping may have options that its predecessor lacks.

    A choice inside a component, as arch.cross=gqa, keeps the options that are there, as attn=gqa
    does. No group can be null: what may be left out is deleted.
    """
    return [_spelled(text, parse(text)) for text in overrides]


def _spelled(text: str, word: Override) -> str:
    if text.startswith(("+", "~")):
        return text
    key = word.key_or_group
    if word.value() is None and defaults().get(key, key) is None:
        return f"~{key}"
    return presets.spelled(text, word) if key.split(".")[0] in chosen() else text
