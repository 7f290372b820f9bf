"""Registers components: each is declared once, by its signature, from which its options and its
menu entry follow.

Positional parameters are wiring, which the parent supplies. Keyword-only parameters are options,
which the user supplies.
"""

from __future__ import annotations

import copy
import enum
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from zoo import contracts
from zoo.errors import ZooError, did_you_mean, first_line
from zoo.options import Component, coerce, field_of

__all__ = ["Component", "Entry", "build", "entries", "entry", "groups", "register", "resolve"]


@dataclass(frozen=True)
class Entry:
    """One declared component: its module, its description, and the dataclass of its options."""

    group: str
    name: str
    module: str
    about: str
    options: type
    factory: Callable[..., Any] | None = None  # None until the module is imported

    def defaults(self) -> dict[str, Any]:
        """The name and every option's default, as plain values."""
        values: dict[str, Any] = {}
        for option in fields(self.options):
            made = option.default_factory
            value = option.default if made is MISSING else made()
            values[option.name] = value.name if isinstance(value, enum.Enum) else value
        return values

    def load(self) -> Callable[..., Any]:
        """What makes the component; its module is imported at first use."""
        if self.factory is None:
            importlib.import_module(self.module)
        factory = entry(self.group, self.name).factory
        assert factory is not None
        return factory


_entries: dict[str, dict[str, Entry]] = {}
_conforming: set[tuple[str, str]] = set()  # components that were seen to fulfil their contract
_resolved: dict[tuple[str, str, str], dict[str, Any]] = {}  # every layer of a deep model asks again


def register(group: str, name: str, about: str = "", **preset: Any) -> Callable[[Any], Any]:
    """Declare a class or function as component `name` of `group`.

    `about` is its one-line description (default: the first line of the docstring). A `preset` fixes
    an option, so that one class can serve several names: it is passed at build time and is no
    longer an option. Raises ZooError when another module has declared the same name.
    """

    def mark(obj: Any) -> Any:
        signature = inspect.signature(obj)

        def factory(*wiring: Any, **options: Any) -> Any:
            try:
                signature.bind(*wiring, **preset, **options)
            except TypeError as error:
                wanted = contracts.wiring(group)
                raise ZooError(
                    f"{group}={name} must take {wanted} beside its options: {error}"
                ) from error
            return obj(*wiring, **preset, **options)

        described = about or inspect.getdoc(obj) or ""
        declare(group, name, obj.__module__, described, signature, _scope(obj), preset, factory)
        return obj

    return mark


def groups() -> list[str]:
    """The names of all groups."""
    return list(_entries)


def entries(group: str) -> dict[str, Entry]:
    """The components of a group by name, maybe none. Raises ZooError for an unknown group."""
    if group not in _entries and group not in contracts.CONTRACTS:
        raise ZooError(f"unknown group {group!r}{did_you_mean(group, _entries)}")
    return _entries.get(group, {})


def group_within(option: str) -> str:
    """The group that an option chooses from: the one of its name, but for these."""
    named = {"qk_norm": "norm", "expert": "ffn", "shared": "ffn", "callbacks": "callback"}
    return named.get(option, option)


def entry(group: str, name: str) -> Entry:
    """One component. Raises ZooError for an unknown name, saying which ones there are."""
    known = entries(group)
    if name not in known:
        raise ZooError(f"unknown {group} {name!r}{did_you_mean(name, known)}")
    return known[name]


def resolve(group: str, choice: Component, path: str = "") -> dict[str, Any]:
    """A choice (a name, or a mapping with a name) with every option filled in and checked.

    `path` is where it is chosen, for error messages, if that is not the group: attn.qk_norm.
    """
    if not isinstance(choice, str | Mapping):
        example = next(iter(entries(group)))
        raise ZooError(
            f"{group} must be a name or a mapping with one, as {example} or {{name: {example}}},"
            f" not {choice!r}"
        )
    options = {"name": choice} if isinstance(choice, str) else dict(choice)
    key = (group, repr(options), path)
    if key not in _resolved:
        _resolved[key] = _resolve(group, options, path or group)
    return copy.deepcopy(_resolved[key])


def _resolve(group: str, options: dict[str, Any], path: str) -> dict[str, Any]:
    component = entry(group, str(options.get("name", "")))
    known = [option.name for option in fields(component.options)]
    for key in options:
        if key not in known:
            hint = did_you_mean(key, known[1:])
            raise ZooError(f"{group}={component.name} has no option {key!r}{hint}")
    plain = coerce(component.options, options, f"{path}.")
    if missing := OmegaConf.missing_keys(plain):
        needed = ", ".join(f"{path}.{key}=..." for key in sorted(missing))
        raise ZooError(f"{group}={component.name} needs {needed}")
    return plain


def build(group: str, choice: Component, *wiring: Any, path: str = "") -> Any:
    """Build a chosen component from its wiring; `path` as for resolve.

    Raises ZooError for an unknown name or option, a wrong type, and a value that the component
    cannot be made with.
    """
    options = resolve(group, choice, path)
    name = options.pop("name")
    factory = entry(group, name).load()
    try:
        component = factory(*wiring, **options)
    except ZooError:
        raise
    except (ValueError, RuntimeError, ArithmeticError) as error:
        reason = first_line(error)
        raise ZooError(f"{group}={name} cannot be made with these options: {reason}") from error
    if component is not None:  # None is a layer without this part
        _check_contract(group, name, component)
    return component


def _check_contract(group: str, name: str, component: Any) -> None:
    if (group, name) in _conforming:
        return
    if wrong := contracts.misfit(group, component):
        module = entry(group, name).module
        raise ZooError(f"{group}={name} from {module} cannot be used: {wrong}")
    _conforming.add((group, name))


def declare(
    group: str,
    name: str,
    module: str,
    about: str,
    signature: inspect.Signature,
    scope: Mapping[str, Any],
    preset: Iterable[str],
    factory: Callable[..., Any] | None = None,
) -> None:
    """Put a component into the registry, and its options with their defaults into Hydra's
    ConfigStore.
    """
    known = _entries.setdefault(group, {}).get(name)
    if known and known.module != module:
        raise ZooError(f"{group}={name} is declared twice: in {known.module} and in {module}")
    if known and known.factory and not factory:
        return  # already imported, which says more than its source
    options: list[Any] = [("name", str, field(default=name))]
    for option in signature.parameters.values():
        if option.kind is option.KEYWORD_ONLY and option.name not in set(preset):
            if option.name == "name":
                raise ZooError(
                    f"{group}={name}: `name` is what a choice is called, so no option can be:"
                    " rename it"
                )
            options.append(field_of(option, scope))
    schema = make_dataclass(f"{name}_options", options)
    summary = about.strip().split("\n\n")[0].replace("\n", " ")
    _resolved.clear()
    _conforming.discard((group, name))
    _entries[group][name] = Entry(group, name, module, summary, schema, factory)
    ConfigStore.instance().store(
        group=group, name=name, node=_node(_entries[group][name]), provider="zoo"
    )


def _node(component: Entry) -> dict[str, Any]:
    """The defaults as Hydra composes them: a nested choice is a mapping, so that its options can be
    given, too.

    They are plain values, not the dataclass: a model's file may set an option that only its own
    component has.
    """
    node = component.defaults()
    for option in fields(component.options):
        if option.type is Component and isinstance(node[option.name], str):
            node[option.name] = {"name": node[option.name]}
    return node


def _scope(obj: Any) -> dict[str, Any]:
    """The globals of the module that a class's __init__, or a function, is written in."""
    function = getattr(obj, "__init__", obj) if inspect.isclass(obj) else obj
    return getattr(inspect.unwrap(function), "__globals__", {})
