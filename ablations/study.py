"""A study is data: what is compared, in how many runs, at which budget, and what would count as a difference.

The file `conf/study/NAME.yaml` is read into a `Study`, every word of it checked. Its hash is over everything that a reader
relies on; its key, which names its folder, is over what decides its runs and their test (arms, seeds, budget, metric, margin).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import yaml

from zoo import metrics
from zoo.config import CONF, FREE
from zoo.config.overrides import split, typed
from zoo.errors import ZooError, did_you_mean
from zoo.metrics import Metric

DESIGNS = ("one_at_a_time", "leave_one_out", "ladder", "factorial", "fractional", "arms")
BUDGETS = ("params", "active", "flops", "tokens", "seconds", "none")
UNITS = {
    "params": "parameters",
    "active": "active",
    "flops": "training_flops",
    "tokens": "tokens",
}  # of those solved for
TOLERANCE = 0.01  # by which matched budgets may differ
VERDICTS = ("better", "worse", "equivalent", "inconclusive")
HASHING = 2  # how the hash is made: 1 (the key of today) was over neither expectations and sd nor the question
KEYED = (
    "baseline",
    "common",
    "factors",
    "arms",
    "design",
    "constraints",
    "pairs",
    "seeds",
    "match",
    "match_by",
    "tune",
    "metric",
    "margin",
)  # in this order: studies of years ago keep their folders
Choices = dict[str, list[str]]  # the name of each choice, and the words that make it


@dataclass(frozen=True)
class Tune:
    """The same search for each arm: of the grid's points `trials` (all, or the same random ones), on seeds of their own."""

    grid: dict[str, list[Any]]
    seeds: list[int]
    trials: int | None = None


@dataclass(frozen=True)
class Study:
    name: str
    about: str = ""
    question: str = ""
    baseline: list[str] = field(default_factory=list)  # what the first arm is made of
    common: list[str] = field(default_factory=list)  # what every run is told: its length, its data
    factors: dict[str, Choices] = field(
        default_factory=dict
    )  # the first choice of each is the baseline's
    arms: Choices = field(
        default_factory=dict
    )  # for design=arms: each by itself, the first being the baseline
    design: str = "one_at_a_time"
    constraints: list[list[str]] = field(default_factory=list)  # words that may not meet in an arm
    pairs: list[list[str]] = field(
        default_factory=list
    )  # factors that vary together, choice by choice
    seeds: list[int] = field(default_factory=lambda: list(range(5)))
    match: str = "params"
    match_by: list[str] = field(
        default_factory=list
    )  # the options that may be solved for, the first that an arm has
    tune: Tune | None = None
    metric: str = "val/loss"
    margin: float | None = None  # differences smaller than this do not matter
    sd: float = 0.0102  # of the metric over seeds, as expected before the first run (that of the pilot's tiny models)
    expected: dict[str, str] = field(default_factory=dict)

    @property
    def measure(self) -> Metric:
        return metrics.of(self.metric)

    @property
    def key(self) -> str:
        told = plain(asdict(self))
        return _digest({name: told[name] for name in KEYED})

    @property
    def hash(self) -> str:
        return hashed(asdict(self))


def hashed(told: Mapping[str, Any]) -> str:
    """The hash of a specification: all but `about`, which no report shows, and what it leaves empty, so that a key of a study
    that is new one day leaves the hashes of those without it."""
    return _digest(
        {
            name: value
            for name, value in plain(told).items()
            if name != "about" and value not in (None, "", [], {})
        }
    )


def _digest(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, ensure_ascii=False).encode()).hexdigest()


def plain(told: Mapping[str, Any]) -> dict[str, Any]:
    """A specification without the words that change no result, as where its runs are logged."""
    return {
        **told,
        "common": [word for word in told.get("common") or [] if not word.startswith(FREE)],
    }


def names() -> list[str]:
    return [field.name for field in fields(Study)]


def load(name: str, changes: Mapping[str, Any] | None = None, places: Iterable[Path] = ()) -> Study:
    """The study of this name (or this file), with the changes that a command line makes to it."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        found = {
            path.stem: path
            for place in (CONF, *places)
            for path in sorted((place / "study").glob("*.yaml"))
        }
        if name not in found:
            raise ZooError(f"no study {name!r}{did_you_mean(name, found)}")
        path = found[name]
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ZooError(f"no study {name!r}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ZooError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ZooError(f"{path} must have keys, as in `design: factorial`")
    return parse(content | {"name": content.get("name") or path.stem} | dict(changes or {}))


class _Loader(yaml.SafeLoader):
    """YAML 1.2, which has the numbers and truth values of Hydra's command line; names and keys are text, as they are written.

    YAML 1.1 reads `off` as false, 010 as 8, 1:30 as 90 and 2024-01-01 as a date.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(keys) < len(node.value):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be a word", node.start_mark
            )
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(
                None, None, f"{twice[0]!r} is there twice", node.start_mark
            )
        self.flatten_mapping(node)
        return {
            key.value: value.value
            if key.value == "name" and isinstance(value, yaml.ScalarNode)
            else self.construct_object(value, deep)
            for key, value in node.value
        }


for tag, pattern, first in (
    ("null", r"|~|null|Null|NULL", ["", "~", "n", "N"]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9_]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+|\.[0-9]+[eE][-+]?[0-9]+)|[-+]?\.(inf|Inf|INF)",
        list("-+.0123456789"),
    ),
    ("merge", "<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^({pattern})$"), first)


def value(text: str) -> Any:
    """A value as it is typed on a command line."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ZooError(f"cannot read {text!r}: quote it") from error


def parse(content: Mapping[str, Any]) -> Study:
    """Check every key and value. Raises ZooError for the first that is wrong, naming it."""
    for key in content:
        if key not in names():
            raise ZooError(f"a study has no {key!r}{did_you_mean(str(key), names())}")
    read: dict[str, Any] = {key: told for key, told in content.items() if told is not None}
    for key in ("name", "about", "question", "metric"):
        if not isinstance(read.get(key, ""), str):
            raise ZooError(f"study: {key} must be text, not {read[key]!r}")
    for key, known in (("design", DESIGNS), ("match", BUDGETS)):
        read[key] = str(read.get(key, getattr(Study, key))).lower()  # YAML's null and none
        if read[key] not in known:
            raise ZooError(
                f"study: {key}={read[key]}: no such {key}{did_you_mean(read[key], known)}"
            )
    metrics.of(read.get("metric", Study.metric))
    if "match" in content and content["match"] is None:
        read["match"] = "none"
    for key in ("baseline", "common"):
        read[key] = _words(read.get(key, []), key)
    read["factors"] = {
        name: choices(told, f"factors.{name}") for name, told in _mapping(read, "factors").items()
    }
    read["arms"] = {
        name: _words(told, f"arms.{name}") for name, told in _mapping(read, "arms").items()
    }
    read["constraints"] = [_words(told, "constraints") for told in _list(read, "constraints")]
    read["pairs"] = [_pair(told, read["factors"]) for told in _list(read, "pairs")]
    twice = [name for pair in read["pairs"] for name in pair]
    if len(set(twice)) < len(twice):
        raise ZooError(f"study: pairs: a factor varies together with others once: {read['pairs']}")
    unused = "factors" if read["design"] == "arms" else "arms"
    if read[unused]:
        raise ZooError(
            f"study: design={read['design']} makes nothing of {unused}: leave them out"
            + ", or say design: arms" * (unused == "arms")
        )
    read["match_by"] = (
        [read["match_by"]] if isinstance(read.get("match_by"), str) else _list(read, "match_by")
    )
    if "seeds" in read:
        read["seeds"] = seeds(read["seeds"], "seeds")
    if "tune" in read:
        read["tune"] = _tune(_mapping(read, "tune"))
    for key in ("margin", "sd"):
        if key in read:
            if (
                isinstance(read[key], bool)
                or not isinstance(read[key], int | float)
                or not 0 < read[key] < math.inf
            ):
                raise ZooError(f"study: {key} must be a number above 0, not {read[key]!r}")
            read[key] = float(read[key])
    for arm, verdict in _mapping(read, "expected").items():
        if verdict not in VERDICTS:
            raise ZooError(
                f"study: expected.{arm}: no such verdict {verdict!r}{did_you_mean(str(verdict), VERDICTS)}"
            )
    return Study(**read)


def choices(told: Any, where: str) -> Choices:
    """A factor's choices by name: each a word or several, a mapping of them, or nothing, which changes nothing."""
    if not isinstance(told, list) or not told:
        raise ZooError(f"study: {where} must be a list of choices, as in [norm=layer, norm=rms]")
    found: Choices = {}
    for choice in told:
        named = dict(choice) if isinstance(choice, dict) else {}
        name, words = named.pop("name", None), _words(named or choice, where)
        name = str(name or ",".join(words) or "default")
        if name in found:
            raise ZooError(f"study: {where} has {name!r} twice")
        found[name] = words
    return found


def seeds(told: Any, where: str) -> list[int]:
    """How many, or which."""
    found = list(range(told)) if type(told) is int and told > 0 else told
    if (
        not isinstance(found, list)
        or not found
        or any(type(seed) is not int or seed < 0 for seed in found)
    ):
        raise ZooError(
            f"study: {where} must be how many, or a list of whole numbers from 0, not {told!r}"
        )
    if len(set(found)) < len(found):
        raise ZooError(f"study: {where} has a seed twice: {found}")
    return found


def merged(*lists: Sequence[str]) -> list[str]:
    """Words after words: what is said later of the same thing takes the place of what was said before."""
    last: dict[str, str] = {}
    for word in (word for words in lists for word in words):
        key = word.split("=", 1)[0]
        last.pop(key, None)
        last[key] = word
    return list(last.values())


def _words(told: Any, where: str) -> list[str]:
    if isinstance(told, str):
        words = split(told) if told else []
    elif isinstance(told, dict):
        words = [f"{key}={typed(value)}" for key, value in told.items()]
    elif isinstance(told, list):
        words = [word for item in told for word in _words(item, where)]
    else:
        raise ZooError(f"study: {where} must be words like norm=rms, not {told!r}")
    for word in words:
        if "=" not in word:
            raise ZooError(f"study: {where}: {word!r} is not a word like norm=rms")
        if word.startswith(("seed=", "hydra", "resume=")):
            raise ZooError(
                f"study: {where}: {word} is the study's own to say"
                + " (seeds: [...])" * word.startswith("seed")
            )
    return words


def _mapping(read: Mapping[str, Any], key: str) -> dict[str, Any]:
    told = read.get(key, {})
    if not isinstance(told, dict):
        raise ZooError(f"study: {key} must have names, as in `{key}: {{norm: ...}}`, not {told!r}")
    return {str(name): inner for name, inner in told.items()}


def _list(read: Mapping[str, Any], key: str) -> list[Any]:
    told = read.get(key, [])
    if not isinstance(told, list):
        raise ZooError(f"study: {key} must be a list, not {told!r}")
    return told


def _pair(told: Any, factors: Mapping[str, Choices]) -> list[str]:
    if not isinstance(told, list) or len(told) < 2:
        raise ZooError(f"study: pairs must be lists of factors that vary together, not {told!r}")
    for name in told:
        if name not in factors:
            raise ZooError(f"study: pairs: no factor {name!r}{did_you_mean(str(name), factors)}")
    if len({len(factors[name]) for name in told}) > 1:
        counts = ", ".join(f"{name} has {len(factors[name])}" for name in told)
        raise ZooError(
            f"study: pairs: {counts} choices, and factors that vary together need as many"
        )
    return told


def _tune(told: dict[str, Any]) -> Tune:
    known = [field.name for field in fields(Tune)]
    for key in told:
        if key not in known:
            raise ZooError(f"study: tune has no {key!r}{did_you_mean(key, known)}")
    grid = {
        key: values if isinstance(values, list) else [values]
        for key, values in _mapping(told, "grid").items()
    }
    if not grid or not all(grid.values()) or not all("." in key for key in grid):
        raise ZooError(
            "study: tune.grid must name options and their values, as in `grid: {optim.lr: [1e-3, 3e-3]}`"
        )
    for key, values in grid.items():
        if twice := [value for number, value in enumerate(values) if value in values[:number]]:
            raise ZooError(f"study: tune.grid.{key} has {twice[0]!r} twice: leave one out")
    trials = told.get("trials")
    if trials is not None and (type(trials) is not int or trials < 1):
        raise ZooError(f"study: tune.trials must be a whole number from 1, not {trials!r}")
    return Tune(grid, seeds(told.get("seeds", [1000, 1001]), "tune.seeds"), trials)
