"""List the groups that a run chooses from, what each offers, and what is chosen by default."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from zoo import registry
from zoo.config import discovery, schema
from zoo.config.differences import FREE

_PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = (_PACKAGE / "conf", _PACKAGE.parent / "conf")
CONF = next(place for place in _PLACES if place.is_dir())


@functools.cache
def discover() -> None:
    """Find every component of the zoo and of installed extensions."""
    schema.store()
    discovery.discover(_PACKAGE)


def choices(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of the component that a configuration chooses of each group (norm: rms)."""
    return {
        group: config[group]["name"]
        for group in registry.groups()
        if isinstance(config.get(group), dict) and group not in FREE
    }


@functools.cache
def chosen() -> list[str]:
    """Return the groups that a run chooses from; an option of a component chooses from the
    others.
    """
    discover()
    return [group for group in registry.groups() if group in defaults()]


@functools.cache
def defaults() -> dict[str, str | None]:
    """Return the default choice of each group; None of a group that may be left out."""
    entries = OmegaConf.select(OmegaConf.load(CONF / "config.yaml"), "defaults")
    return {group: name for entry in entries if entry != "_self_" for group, name in entry.items()}


def word_for(group: str) -> str:
    """Return the key that chooses from a group: its name, or the option of another (arch.cross)."""
    if group in chosen() or group not in registry.groups():
        return group
    places = ((outer, entry) for outer in chosen() for entry in registry.entries(outer).values())
    return next((f"{outer}.{group}" for outer, entry in places if group in entry.defaults()), group)


def menu() -> dict[str, list[str]]:
    """Return the choices of every group: components, schemas, and files of conf/."""
    discover()
    components = {group: list(registry.entries(group)) for group in chosen()} | {
        "loader": ["default"]
    }
    places = sorted(place for place in CONF.iterdir() if place.is_dir() and place.name != "study")
    return components | {
        place.name: sorted(file.stem for file in place.glob("*.yaml")) for place in places
    }
