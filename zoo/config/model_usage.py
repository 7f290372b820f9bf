"""Which named model is made of which components, read from the files of conf/ without composing
them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from zoo import registry
from zoo.config import CONF, discover


def users() -> dict[tuple[str, str], list[str]]:
    """(group, name) -> the named models that use it, in any of their layers; of what all of them
    use, none.
    """
    discover()
    found: dict[tuple[str, str], list[str]] = {}
    models = sorted(file.stem for file in (CONF / "model").glob("*.yaml"))
    for model in models:
        for part in parts(model):
            found.setdefault(part, []).append(model)
    return {part: using for part, using in found.items() if len(using) < len(models)}


@functools.cache
def parts(model: str) -> list[tuple[str, str]]:
    """The (group, name) of every component that a named model uses."""
    discover()
    return list(dict.fromkeys(_parts(model)))


@functools.cache
def chosen(model: str) -> dict[str, str]:
    """The name of the component of each group that a named model is made of."""
    discover()
    picked: dict[str, str] = {}
    _pick("config.yaml", picked)
    _pick(f"model/{model}.yaml", picked)
    return picked


def _parts(model: str) -> Iterator[tuple[str, str]]:
    picked: dict[str, str] = {}
    _pick("config.yaml", picked)
    bodies = _pick(f"model/{model}.yaml", picked)
    for group, name in picked.items():
        if group in registry.groups() and name in registry.entries(group):
            yield group, name
    for body in bodies:
        yield from _named(body)


def _pick(file: str, picked: dict[str, str]) -> list[Any]:
    """Note what the file and those that it builds on choose, later words over earlier; gives
    their contents.
    """
    content: Any = OmegaConf.to_container(OmegaConf.load(CONF / file))
    bodies = []
    for entry in content.pop("defaults", []):
        if isinstance(entry, Mapping):
            picked |= {key.removeprefix("override /"): name for key, name in entry.items()}
        elif entry != "_self_":
            bodies += _pick(f"model/{entry}.yaml", picked)
    return [*bodies, content]


def _named(node: Any) -> Iterator[tuple[str, str]]:
    """The components chosen inside others, and by a pattern."""
    if isinstance(node, list):
        for item in node:
            yield from _named(item)
    elif isinstance(node, Mapping):
        for key, value in node.items():
            group = registry.group_within(key)
            name = value.get("name") if isinstance(value, Mapping) else value
            if (
                group in registry.groups()
                and isinstance(name, str)
                and name in registry.entries(group)
            ):
                yield group, name
            yield from _named(value)
