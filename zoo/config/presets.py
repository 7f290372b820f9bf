"""What a file says of a model, made to fit what a command line changes in it: another part, or a
smaller size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from hydra.core.override_parser.types import Override, ValueType

from zoo import errors, registry

Rules = Mapping[str, Mapping[str, Any]]  # of a size: group -> option -> value


def typed(words: Iterable[Override]) -> Iterator[str]:
    """The dotted keys that a command line gives, those within a mapping too."""
    for word in words:
        yield word.key_or_group
        yield from _within(word.key_or_group, word.value())


def _within(path: str, value: Any) -> Iterator[str]:
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield f"{path}.{key}"
        yield from _within(f"{path}.{key}", inner)


def fit(config: dict[str, Any], groups: Iterable[str], given: set[str]) -> None:
    """Leave out the options of a component that another was put in the place of, where the
    command line did not give them.
    """
    for group in set(groups) & set(config):
        _fit(group, config[group], None, group, given)
    for when in ("first", "pattern"):
        changes = (
            config["arch"].get(when)
            if isinstance(config.get("arch"), dict) and f"arch.{when}" not in given
            else None
        )
        for layer in changes if isinstance(changes, list) else ():
            for group, change in layer.items() if isinstance(layer, dict) else ():
                chosen = config.get(group)
                _fit(
                    group,
                    change,
                    chosen.get("name") if isinstance(chosen, dict) else None,
                    "",
                    given,
                )


def _fit(group: str, node: Any, name: str | None, path: str, given: set[str]) -> None:
    """`name` is that of the component whose options these are, where the node does not say it."""
    if not isinstance(node, dict) or group not in registry.groups():
        return
    entries = registry.entries(group)
    options = {
        known: {option.name for option in fields(entry.options)} for known, entry in entries.items()
    }
    own = options.get(str(node.get("name", name)), set(node))
    for key in set(node) - own:
        here = f"{path}.{key}"
        if any(key in others for others in options.values()) and not any(
            f"{word}.".startswith(f"{here}.") for word in given
        ):
            del node[key]
    for key, value in node.items():
        _fit(registry.group_within(key), value, None, f"{path}.{key}", given)


def chooses(key: str) -> bool:
    """Whether a dotted key is a choice inside another component, as arch.cross is."""
    *path, last = key.split(".")
    return bool(path) and registry.group_within(last) in registry.groups()


def inside(key: str) -> bool:
    """Whether a dotted key is an option of such a choice, as arch.cross.head_dim is."""
    path = key.split(".")
    return any(chooses(".".join(path[:end])) for end in range(2, len(path)))


def picks(word: Override) -> list[str]:
    """The names that a word chooses, several in a sweep."""
    if word.value_type in (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP):
        return [str(choice) for choice in word.sweep_string_iterator()]
    value = word.value()
    return [] if word.is_delete() else ["null" if value is None else str(value)]


def spelled(word: str, parsed: Override) -> str:
    """A word about a component as Hydra must be told it: that an option may be new, and which
    name a choice inside it has.
    """
    key, mapping = parsed.key_or_group, isinstance(parsed.value(), dict)
    if (
        chooses(key)
        and (parsed.is_sweep_override() or isinstance(parsed.value(), str))
        and "null" not in picks(parsed)
    ):
        return f"++{key}.name={word.partition('=')[2]}"
    return f"++{word}" if mapping or inside(key) else word


def settle(path: str, node: Any) -> None:
    """Hold each choice inside a component to the options that it has; one without any is its name
    alone.

    Raises ZooError for an option that it has not, and for options of nothing.
    """
    for key, value in node.items() if isinstance(node, dict) else ():
        here, group = f"{path}.{key}", registry.group_within(key)
        if not isinstance(value, dict) or group not in registry.groups():
            continue
        if "name" not in value:
            known = ", ".join(registry.entries(group))
            raise errors.ZooError(
                f"{here} is given options, but nothing is chosen there: add {here}=NAME, one of"
                f" {known}"
            )
        settle(here, value)
        registry.resolve(group, value, here)
        if value.keys() == {"name"}:
            node[key] = value["name"]


def shrink(config: dict[str, Any], sizes: Rules, given: set[str]) -> None:
    """Set the numbers that a size names, also in the components within a component and in the
    changes of a pattern.
    """
    for group, rule in sizes.items():
        _shrink(group, config.get(group), rule, sizes, given)


def _shrink(path: str, node: Any, rule: Mapping[str, Any], sizes: Rules, given: set[str]) -> None:
    for key, value in list(node.items()) if isinstance(node, dict) else []:
        here, inner = f"{path}.{key}", sizes.get(registry.group_within(key), rule)
        if here in given:
            continue
        if isinstance(value, list):
            for item in value:
                _shrink(here, item, inner, sizes, given)
        elif isinstance(value, dict):
            _shrink(here, value, inner, sizes, given)
        elif key in rule and value is not None:
            node[key] = rule[key]
