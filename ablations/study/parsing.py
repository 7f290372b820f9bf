"""Parse the content of a study's file: every key and value is checked, and defaults filled in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ablations.study.schema import (
    BUDGETS,
    DESIGNS,
    VERDICTS,
    Choices,
    Study,
    Tune,
    field_names,
)
from zoo import metrics
from zoo.config.overrides import split, typed
from zoo.errors import ZooError, did_you_mean


def parse(content: Mapping[str, Any]) -> Study:
    """Check every key and value. Raises ZooError for the first that is wrong, naming it."""
    for key in content:
        if key not in field_names():
            raise ZooError(f"a study has no {key!r}{did_you_mean(str(key), field_names())}")
    given = {key: value for key, value in content.items() if value is not None}
    if "match" in content and content["match"] is None:
        given["match"] = "none"  # YAML's null stands for it
    study: dict[str, Any] = dict(given)
    for key in ("name", "about", "question", "metric"):
        _check_text(given, key)
    study["design"] = _member(given, "design", DESIGNS)
    study["match"] = _member(given, "match", BUDGETS)
    metrics.of(given.get("metric", Study.metric))
    for key in ("baseline", "common"):
        study[key] = _overrides(given.get(key, []), key)
    factors = study["factors"] = {
        name: choices(value, f"factors.{name}")
        for name, value in _mapping(given, "factors").items()
    }
    study["arms"] = {
        name: _overrides(value, f"arms.{name}") for name, value in _mapping(given, "arms").items()
    }
    study["constraints"] = [_overrides(rule, "constraints") for rule in _list(given, "constraints")]
    study["pairs"] = _pairs(_list(given, "pairs"), factors)
    _refuse_unused(study)
    study["match_by"] = _match_by(given)
    if "seeds" in given:
        study["seeds"] = _seeds(given["seeds"], "seeds")
    if "tune" in given:
        study["tune"] = _tune(_mapping(given, "tune"))
    for key in ("margin", "sd"):
        if key in given:
            study[key] = _positive(given[key], key)
    study["expected"] = _expected(_mapping(given, "expected"))
    return Study(**study)


def choices(value: Any, where: str) -> Choices:
    """Parse the choices of a factor: each an override, several, a mapping of them, or nothing."""
    if not isinstance(value, list) or not value:
        raise ZooError(f"study: {where} must be a list of choices, as in [norm=layer, norm=rms]")
    parsed: Choices = {}
    for choice in value:
        mapping = dict(choice) if isinstance(choice, dict) else {}
        name = mapping.pop("name", None)
        overrides = _overrides(mapping or choice, where)
        name = str(name or ",".join(overrides) or "default")
        if name in parsed:
            raise ZooError(f"study: {where} has {name!r} twice")
        parsed[name] = overrides
    return parsed


def _check_text(given: Mapping[str, Any], key: str) -> None:
    if not isinstance(given.get(key, ""), str):
        raise ZooError(f"study: {key} must be text, not {given[key]!r}")


def _member(given: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str:
    value = str(given.get(key, getattr(Study, key))).lower()
    if value not in known:
        raise ZooError(f"study: {key}={value}: no such {key}{did_you_mean(value, known)}")
    return value


def _positive(value: Any, key: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ZooError(f"study: {key} must be a number above 0, not {value!r}")
    return float(value)


def _seeds(value: Any, where: str) -> list[int]:
    """Parse seeds: how many, or which."""
    seeds = list(range(value)) if type(value) is int and value > 0 else value
    if not isinstance(seeds, list) or not seeds or not all(map(_is_seed, seeds)):
        raise ZooError(
            f"study: {where} must be how many, or a list of whole numbers from 0, not {value!r}"
        )
    if len(set(seeds)) < len(seeds):
        raise ZooError(f"study: {where} has a seed twice: {seeds}")
    return seeds


def _is_seed(value: Any) -> bool:
    return type(value) is int and value >= 0  # a bool is no seed


def _overrides(value: Any, where: str) -> list[str]:
    if isinstance(value, str):
        overrides = split(value) if value else []
    elif isinstance(value, dict):
        overrides = [f"{key}={typed(inner)}" for key, inner in value.items()]
    elif isinstance(value, list):
        overrides = [override for item in value for override in _overrides(item, where)]
    else:
        raise ZooError(f"study: {where} must be overrides such as norm=rms, not {value!r}")
    for override in overrides:
        if "=" not in override:
            raise ZooError(f"study: {where}: {override!r} is not an override such as norm=rms")
        if override.startswith("seed="):
            raise ZooError(f"study: {where}: {override} belongs in the study's seeds: [...]")
        if override.startswith(("hydra", "resume=")):
            raise ZooError(f"study: {where}: {override} is set by the study itself: leave it out")
    return overrides


def _mapping(given: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = given.get(key, {})
    if not isinstance(value, dict):
        raise ZooError(f"study: {key} must have names, as in `{key}: {{norm: ...}}`, not {value!r}")
    return {str(name): inner for name, inner in value.items()}


def _list(given: Mapping[str, Any], key: str) -> list[Any]:
    value = given.get(key, [])
    if not isinstance(value, list):
        raise ZooError(f"study: {key} must be a list, not {value!r}")
    return value


def _match_by(given: Mapping[str, Any]) -> list[Any]:
    option = given.get("match_by")
    return [option] if isinstance(option, str) else _list(given, "match_by")


def _pairs(value: list[Any], factors: Mapping[str, Choices]) -> list[list[str]]:
    pairs = [_pair(names, factors) for names in value]
    paired = [name for pair in pairs for name in pair]
    if len(set(paired)) < len(paired):
        raise ZooError(f"study: pairs: a factor may be in one pair only: {pairs}")
    return pairs


def _pair(names: Any, factors: Mapping[str, Choices]) -> list[str]:
    if not isinstance(names, list) or len(names) < 2:
        raise ZooError(f"study: pairs must be lists of factors that vary together, not {names!r}")
    for name in names:
        if name not in factors:
            raise ZooError(f"study: pairs: no factor {name!r}{did_you_mean(str(name), factors)}")
    if len({len(factors[name]) for name in names}) > 1:
        counts = ", ".join(f"{name} has {len(factors[name])}" for name in names)
        raise ZooError(
            f"study: pairs: {counts} choices, and factors that vary together need equally many"
        )
    return names


def _refuse_unused(study: Mapping[str, Any]) -> None:
    """Refuse the factors of a design that has arms, and the arms of one that has factors."""
    if study["design"] == "arms" and study["factors"]:
        raise ZooError("study: design=arms does not use factors: leave them out")
    if study["design"] != "arms" and study["arms"]:
        raise ZooError(
            f"study: design={study['design']} does not use arms: leave them out, or set"
            " design: arms"
        )


def _tune(content: dict[str, Any]) -> Tune:
    known = [field.name for field in fields(Tune)]
    for key in content:
        if key not in known:
            raise ZooError(f"study: tune has no {key!r}{did_you_mean(key, known)}")
    grid = {
        option: values if isinstance(values, list) else [values]
        for option, values in _mapping(content, "grid").items()
    }
    if not grid or not all(grid.values()) or not all("." in option for option in grid):
        raise ZooError(
            "study: tune.grid must name options and their values, as in"
            " `grid: {optim.lr: [1e-3, 3e-3]}`"
        )
    for option, values in grid.items():
        for number, value in enumerate(values):
            if value in values[:number]:
                raise ZooError(f"study: tune.grid.{option} has {value!r} twice: leave one out")
    trials = content.get("trials")
    if trials is not None and (type(trials) is not int or trials < 1):
        raise ZooError(f"study: tune.trials must be a whole number from 1, not {trials!r}")
    return Tune(grid, _seeds(content.get("seeds", [1000, 1001]), "tune.seeds"), trials)


def _expected(content: dict[str, Any]) -> dict[str, Any]:
    for arm, verdict in content.items():
        if verdict not in VERDICTS:
            raise ZooError(
                f"study: expected.{arm}: no such verdict {verdict!r}"
                f"{did_you_mean(str(verdict), VERDICTS)}"
            )
    return content
