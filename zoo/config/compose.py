"""From words on the command line to checked configurations, before anything heavy is imported."""

from __future__ import annotations

import contextlib
import copy
import functools
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zoo import errors, registry
from zoo.config import discovery, presets, schema, suggestions
from zoo.config.overrides import parse
from zoo.errors import ZooError, did_you_mean, first_line
from zoo.utils import extras

_HERE = Path(__file__).resolve().parents[1]
CONF = next(place for place in (_HERE / "conf", _HERE.parent / "conf") if place.is_dir())
Config = dict[str, Any]
FREE = (
    "resume",
    "changing",
    "logger",
    "trainer.progress",
    "trainer.sample",
    "trainer.keep_memory",
    "trainer.watch_every",
)  # what may differ when a run goes on
MOST_RUNS = 10_000  # of one word of a sweep


@functools.cache
def discover() -> None:
    """Find every component of the zoo and of installed extensions."""
    schema.store()
    discovery.discover(_HERE)


def compose(overrides: Sequence[str] = ()) -> Config:
    """The full configuration that these words give, as plain values with nothing left to interpolate.

    Raises ZooError for an unknown group, choice or key, a wrong type or a missing value, saying what was probably meant.
    """
    with composing() as one:
        return one(overrides)


@contextlib.contextmanager
def composing() -> Iterator[Callable[[Sequence[str]], Config]]:
    """What `compose` does, for many."""
    discover()

    def one(overrides: Sequence[str]) -> Config:
        _check_words(overrides, one)
        overrides = spelled(overrides)
        values = [
            word
            for word in _parsed(overrides)
            if "." in word.key_or_group
            and "/" not in word.key_or_group
            and not word.is_hydra_override()
            and not word.is_add()
            and not word.is_delete()
        ]
        lines = [str(word.input_line) for word in values]
        choosing = [word for word in overrides if word not in lines]
        try:
            composed = _structure(choosing)
            for word in values:
                _apply(word, composed)
            return finished(composed, overrides)
        except ZooError:
            raise
        except (HydraException, OmegaConfBaseException, ValueError, OverflowError) as error:
            raise ZooError(suggestions.in_plain_words(error)) from error

    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield one


def _apply(word: Override, composed: DictConfig) -> None:
    try:
        ConfigLoaderImpl._apply_overrides_to_config([word], composed)
    except (
        TypeError,
        KeyError,
        AttributeError,
    ) as error:  # a list is indexed by a word, or the like
        raise ZooError(
            f"{word.input_line} does not fit what is there: {first_line(error)}"
        ) from error


def _structure(words: list[str]) -> DictConfig:
    """What `hydra.compose` gives; where no word is about Hydra, without Hydra's own part, which takes half the time."""
    if any("hydra" in word for word in words):
        return hydra_compose("config", words)
    known = [entry for group in registry.groups() for entry in registry.entries(group).values()]
    return copy.deepcopy(_composed(tuple(words), tuple(known)))


@functools.lru_cache(256)
def _composed(words: tuple[str, ...], known: tuple[registry.Entry, ...]) -> DictConfig:
    """Compose the words that choose files and components once for all that share them, as long as the same are known."""
    loader: Any = GlobalHydra.instance().config_loader()
    parsed, repository = loader._parse_overrides_and_create_caching_repo("config", list(words))
    told = create_defaults_list(
        repo=repository,
        config_name="config",
        overrides_list=parsed,
        prepend_hydra=False,
        skip_missing=False,
    )
    composed: DictConfig = loader._compose_config_from_defaults_list(
        defaults=told.defaults, repo=repository
    )
    del composed["hydra"]
    OmegaConf.set_struct(composed, True)
    loader._apply_overrides_to_config(told.config_overrides, composed)
    return composed


def finished(composed: DictConfig, words: Sequence[str] = ()) -> Config:
    """A composed configuration as plain values: shrunk where a size says so, the vocabulary filled in where it was left open.

    That is the tokenizer's, and what the objective needs beside it.
    `words` are those of the command line, which are never changed or left out.
    """
    raw: Any = OmegaConf.to_container(composed, enum_to_str=True)
    sizes, given = raw.pop("size", None) or {}, set(presets.typed(_parsed(words)))
    presets.fit(raw, _chosen(), given)
    presets.shrink(raw, sizes, given)
    try:
        config: Any = OmegaConf.to_container(
            OmegaConf.create(raw), resolve=True, throw_on_missing=True
        )
    except OmegaConfBaseException as error:
        raise ZooError(suggestions.in_plain_words(error)) from error
    known = [*_chosen(), "callbacks", "loader", "trainer", "seed", "resume", "changing"]
    for key in dict.fromkeys([*known, *map(str, config)]):
        if key not in config:
            raise ZooError(f"a run needs a {key}: give {key}=...")
        if key not in known:
            raise ZooError(f"nothing reads {key!r}{did_you_mean(key, known)}")
    for group in _chosen():
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


def jobs(arguments: Namespace) -> Iterator[tuple[list[str], Config]]:
    """The overrides and the configuration of each run that a command line asks for: one, or in multirun the product."""
    words = list(arguments.overrides)
    if arguments.config_dir:
        words.append(f"hydra.searchpath=[file://{Path(arguments.config_dir).resolve()}]")
    if not arguments.multirun:
        yield words, compose(words)
        return
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    parsed = _parsed(words)
    if any(word.key_or_group == "hydra/sweeper" for word in parsed):
        return  # another sweeper decides as it goes; each job is checked as it starts
    with composing() as one:
        for batch in BasicSweeper.split_arguments(_countable(words), max_batch_size=None):
            for job in batch:
                yield list(job), one(job)


def _countable(words: Sequence[str]) -> list[Override]:
    """The words of a sweep, none of which names no value or more than anybody would wait for."""
    parsed = _parsed(words)
    for word in parsed:
        word.config_loader = GlobalHydra.instance().config_loader()  # which a glob looks into
        span: Any = word.value()
        if isinstance(span, RangeSweep):
            start, stop, step = (end or 0 for end in (span.start, span.stop, span.step))
            if not step or not 0 < (stop - start) / step <= MOST_RUNS:
                raise ZooError(
                    f"{word.input_line} must name from 1 to {MOST_RUNS:,} values, as in"
                    f" {word.key_or_group}=range(0,3)"
                )
        if (
            word.is_sweep_override()
            and not isinstance(span, RangeSweep)
            and not any(True for _ in word.sweep_iterator())
        ):
            raise ZooError(f"{word.input_line} names no value: there is nothing to run")
        if (
            word.is_sweep_override()
            and "null" in presets.picks(word)
            and word.key_or_group in defaults()
        ):
            raise ZooError(
                f"{word.input_line}: null takes no part in a sweep; start one without {word.key_or_group}=..."
            )
    return parsed


def choices(config: Config) -> dict[str, str]:
    """Which component of each group a configuration chooses, by flat names (norm: rms)."""
    return {
        group: config[group]["name"]
        for group in registry.groups()
        if isinstance(config.get(group), dict) and group not in FREE
    }


@functools.cache
def _chosen() -> list[str]:
    """The groups of components that a run chooses from; others (cross, scaling) are chosen by an option of a component."""
    discover()
    return [group for group in registry.groups() if group in defaults()]


@functools.cache
def defaults() -> dict[str, str | None]:
    """What is chosen of each group when nothing is said; None of those that may be left out."""
    entries = OmegaConf.select(OmegaConf.load(CONF / "config.yaml"), "defaults")
    return {group: name for entry in entries if entry != "_self_" for group, name in entry.items()}


def word_for(group: str) -> str:
    """The word by which a group is chosen: its name, or the option of another that it is chosen by (arch.cross)."""
    if group in _chosen() or group not in registry.groups():
        return group
    places = ((outer, entry) for outer in _chosen() for entry in registry.entries(outer).values())
    return next((f"{outer}.{group}" for outer, entry in places if group in entry.defaults()), group)


def menu() -> dict[str, list[str]]:
    """The choices of every group: components, schemas, and files of conf/."""
    discover()
    components = {group: list(registry.entries(group)) for group in _chosen()} | {
        "loader": ["default"]
    }
    places = sorted(place for place in CONF.iterdir() if place.is_dir() and place.name != "study")
    return components | {
        place.name: sorted(file.stem for file in place.glob("*.yaml")) for place in places
    }


def different(config: Config, other: Config, prefix: str = "") -> list[str]:
    """The dotted keys in which two configurations differ."""
    keys: list[str] = []
    for key in sorted({*config, *other}, key=str):
        ours, theirs = config.get(key), other.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            keys += different(ours, theirs, f"{prefix}{key}.")
        elif ours != theirs:
            keys.append(f"{prefix}{key}")
    return keys


def changed(config: Config, before: Config) -> list[str]:
    """The keys in which a configuration differs from that of the run that it would go on with, where it must not."""
    free = (*FREE, *config["changing"])
    keys = different(config, schema.completed(before))
    return [key for key in keys if not any(f"{key}.".startswith(f"{name}.") for name in free)]


def _parsed(words: Sequence[str]) -> list[Override]:
    return [parse(word) for word in words]


def spelled(words: Sequence[str]) -> list[str]:
    """The words as Hydra must be told them: a mapping may have options that the one in its place has not.

    A choice inside a component, as arch.cross=gqa, keeps the options that are there, as attn=gqa does. And no group can be
    null: what may be left out is taken away.
    """
    found = []
    for word, parsed in zip(words, _parsed(words), strict=True):
        key = parsed.key_or_group
        plain = not word.startswith(("+", "~"))
        if plain and key.split(".")[0] in _chosen():
            word = presets.spelled(word, parsed)
        if plain and parsed._value is None and defaults().get(key, key) is None:
            word = f"~{key}"
        found.append(word)
    return found


def _check_words(words: Sequence[str], compose: Callable[[Sequence[str]], Config]) -> None:
    """Say which word is unknown, and what it was probably meant to be, better than composing can."""
    known = menu()
    keys = [*known, "callbacks", "seed", "resume", "changing"]
    extended = any(word.startswith(("hydra.searchpath", "+hydra.searchpath")) for word in words)
    for word in _parsed(words):
        key, head = word.key_or_group, word.key_or_group.split(".")[0].split("@")[0]
        if word.is_sweep_override():
            raise ZooError(
                f"{word.input_line} names several, of which a run takes one: -m makes zoo.train run each"
            )
        if key in ("hydra.run.dir", "hydra.sweep.dir") and not word.value():
            raise ZooError(f"{word.input_line} names no folder: write {key}=FOLDER")
        if key == "hydra/launcher":
            extras.need_launcher(str(word.value()))
        if key.startswith("hydra."):
            _check_hydra(word)
        if word.is_add() or head.split("/")[0] == "hydra":
            continue
        if word_for(head) != head:
            raise ZooError(
                f"{head} is chosen inside another part: write {word_for(head)}=... instead of {word.input_line!r}"
            )
        if head == "study":
            raise ZooError(
                f"{word.input_line} is many runs: {errors.command('ablations.run', str(word.input_line))}"
            )
        if head not in keys and head.split("/")[0] not in keys:
            others = [other for other in words if not parse(other).key_or_group.startswith(head)]
            raise ZooError(
                f"unknown word {head!r} in {word.input_line!r}{suggestions.instead(head, keys, compose, others)}"
            )
        if word.is_delete() and "." in key:
            raise ZooError(
                f"{word.input_line}: an option cannot be taken away, only changed: write {key}=..."
            )
        if head in known and key == head and not extended:
            for choice in presets.picks(word):
                if choice not in known[head] and not (
                    choice == "null" and defaults().get(head, "") is None
                ):
                    raise ZooError(
                        f"{head}={choice}: no such {head}{did_you_mean(choice, known[head])}"
                    )


def _check_hydra(word: Override) -> None:
    """Hydra takes any key with a +, and never reads it; its free mappings, as hydra.job.env_set, end the search."""
    from hydra.conf import HydraConf

    node: Any = OmegaConf.structured(HydraConf)
    path = word.key_or_group.split(".")
    for depth, key in enumerate(path[1:], 1):
        if not isinstance(node, DictConfig) or OmegaConf.get_type(node) in (dict, None):
            return
        names = [str(name) for name in node.keys()]  # noqa: SIM118  which has those without a value, too
        if key not in names:
            raise ZooError(
                f"{word.input_line}: {'.'.join(path[:depth])} has no option {key!r}{did_you_mean(key, names)}"
            )
        node = node._get_node(key)
