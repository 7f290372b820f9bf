"""The one registry. A component is declared once, by its signature; its options, its menu entry and its build follow.

Positional parameters are wiring, which the parent supplies. Keyword-only parameters are options, which the user supplies.
"""

from __future__ import annotations

import copy
import enum
import importlib
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING as NONE
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, Literal, Optional, Union

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zoo import contracts
from zoo.errors import ZooError, did_you_mean, first_line

TOO_LARGE = 2**31  # for a size or a number of things: torch, too, counts in 64 bits
Component = (
    Any  # the annotation of an option that is itself a choice: a name, or a mapping with a `name`
)


@dataclass(frozen=True)
class Entry:
    """One declared component: where it lives, what it says of itself, and the dataclass of its options."""

    group: str
    name: str
    module: str
    about: str
    options: type
    factory: Callable[..., Any] | None = None  # None until the module is imported

    def defaults(self) -> dict[str, Any]:
        """The name and every option's default, as plain values."""
        values = {
            option.name: option.default
            if option.default_factory is NONE
            else option.default_factory()
            for option in fields(self.options)
        }
        return {
            name: value.name if isinstance(value, enum.Enum) else value
            for name, value in values.items()
        }

    def load(self) -> Callable[..., Any]:
        if self.factory is None:
            importlib.import_module(self.module)
        factory = entry(self.group, self.name).factory
        assert factory is not None
        return factory


_entries: dict[str, dict[str, Entry]] = {}
_fitting: set[tuple[str, str]] = set()  # those that have been seen to be what their group asks for
_resolved: dict[
    tuple[str, str], dict[str, Any]
] = {}  # a deep model asks the same for each of its layers


def register(group: str, name: str, about: str = "", **preset: Any) -> Callable[[Any], Any]:
    """Declare a class or function as component `name` of `group`.

    `about` is its one-line description (default: the first line of the docstring). A `preset` fixes an option, so that one
    class can serve several names: it is passed at build time and is no longer an option. Raises ZooError when another
    module has declared the same name.
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

        about_ = about or inspect.getdoc(obj) or ""
        declare(group, name, obj.__module__, about_, signature, _scope(obj), preset, factory)
        return obj

    return mark


def groups() -> list[str]:
    return list(_entries)


def entries(group: str) -> dict[str, Entry]:
    """The components of a group by name, none where nothing is declared. Raises ZooError for an unknown group."""
    if group not in _entries and group not in contracts.CONTRACTS:
        raise ZooError(f"unknown group {group!r}{did_you_mean(group, _entries)}")
    return _entries.get(group, {})


def group_within(option: str) -> str:
    """The group that an option chooses from, which has its name but for these."""
    return {"qk_norm": "norm", "expert": "ffn", "shared": "ffn", "callbacks": "callback"}.get(
        option, option
    )


def entry(group: str, name: str) -> Entry:
    """One component. Raises ZooError for an unknown name, saying which ones there are."""
    known = entries(group)
    if name not in known:
        raise ZooError(f"unknown {group} {name!r}{did_you_mean(name, known)}")
    return known[name]


def resolve(group: str, choice: Component) -> dict[str, Any]:
    """A choice (a name, or a mapping with a name) with every option filled in and its type checked."""
    if not isinstance(choice, str | Mapping):
        example = next(iter(entries(group)))
        raise ZooError(
            f"{group} must be a name or a mapping with one, as {example} or {{name: {example}}}, not {choice!r}"
        )
    chosen = {"name": choice} if isinstance(choice, str) else dict(choice)
    key = (group, repr(chosen))
    if key not in _resolved:
        _resolved[key] = _resolve(group, chosen)
    return copy.deepcopy(_resolved[key])


def _resolve(group: str, chosen: dict[str, Any]) -> dict[str, Any]:
    found = entry(group, str(chosen.get("name", "")))
    names = [option.name for option in fields(found.options)]
    for key in chosen:
        if key not in names:
            raise ZooError(
                f"{group}={found.name} has no option {key!r}{did_you_mean(key, names[1:])}"
            )
    plain = coerce(found.options, chosen, f"{group}.")
    missing = OmegaConf.missing_keys(plain)
    if missing:
        raise ZooError(
            f"{group}={found.name} needs {', '.join(f'{group}.{key}=...' for key in sorted(missing))}"
        )
    for option, value in plain.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ZooError(f"{group}.{option}={value} must be a finite number")
        if isinstance(value, int) and abs(value) >= TOO_LARGE:
            raise ZooError(
                f"{group}.{option} is more than any model has: at most {TOO_LARGE - 1:,}"
            )
    return plain


def coerce(schema: type, values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """These values, held to the types of a dataclass. Raises ZooError, whose words begin with path and key."""
    for option in fields(schema):
        value = values.get(option.name)
        if typing.get_origin(option.type) is list and not isinstance(
            value, list | ListConfig | None
        ):
            example = f"{path}{option.name}=[a,b]"
            raise ZooError(f"{path}{option.name} must be a list, as in {example}, not {value!r}")
    try:
        plain: Any = OmegaConf.to_container(
            OmegaConf.merge(OmegaConf.structured(schema), values), enum_to_str=True
        )
    except OmegaConfBaseException as error:
        raise ZooError(f"{path}{error.full_key or error.key}: {first_line(error)}") from error
    except OverflowError as error:  # OmegaConf's, for a number of hundreds of digits
        largest = max(
            (key for key, value in values.items() if isinstance(value, int)),
            key=lambda key: abs(values[key]),
        )
        raise ZooError(f"{path}{largest}: {first_line(error)}") from error
    for key, value in plain.items():
        if (
            isinstance(value, str) and "${" in value
        ):  # in a loaded file it could read the environment
            raise ZooError(f"{path}{key}={value!r} is not a plain value")
    return {str(key): value for key, value in plain.items()}


def build(group: str, choice: Component, *wiring: Any) -> Any:
    """Build a chosen component from its wiring.

    Raises ZooError for an unknown name or option, a wrong type, and a value that the component cannot be made with.
    """
    options = resolve(group, choice)
    name = options.pop("name")
    factory = entry(group, name).load()
    try:
        made = factory(*wiring, **options)
    except ZooError:
        raise
    except (ValueError, RuntimeError, ArithmeticError) as error:
        raise ZooError(
            f"{group}={name} cannot be made with these options: {first_line(error)}"
        ) from error
    if made is not None and (group, name) not in _fitting:  # None is a layer without this part
        if wrong := contracts.misfit(group, made):
            raise ZooError(
                f"{group}={name} from {entry(group, name).module} cannot be used: {wrong}"
            )
        _fitting.add((group, name))
    return made


def choice_type(*choices: str) -> Any:
    """A type that allows these words only."""
    return enum.Enum("words", [(choice, choice) for choice in choices])


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
    known = _entries.setdefault(group, {}).get(name)
    if known and known.module != module:
        raise ZooError(f"{group}={name} is declared twice: in {known.module} and in {module}")
    if known and known.factory and not factory:
        return  # already imported, which tells more than its source
    options: list[Any] = [("name", str, field(default=name))]
    for option in signature.parameters.values():
        if option.kind is option.KEYWORD_ONLY and option.name not in set(preset):
            if option.name == "name":
                raise ZooError(
                    f"{group}={name}: `name` is what a choice is called, so no option can be: rename it"
                )
            options.append(_option(option, scope))
    made = make_dataclass(f"{name}_options", options)
    _resolved.clear()
    _fitting.discard((group, name))
    _entries[group][name] = Entry(
        group, name, module, about.strip().split("\n\n")[0].replace("\n", " "), made, factory
    )
    # plain values, not the dataclass: a model's file may give an option that the component in its own's place has not
    # and a choice inside it as a mapping, so that an option of that can be given
    inner = [option.name for option in fields(made) if option.type is Any]
    node = {
        option: {"name": value} if option in inner and isinstance(value, str) else value
        for option, value in _entries[group][name].defaults().items()
    }
    ConfigStore.instance().store(group=group, name=name, node=node, provider="zoo")


def _option(option: inspect.Parameter, scope: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """An option as a dataclass field; OmegaConf knows no Literal, so it becomes an Enum of the same words."""
    kind: Any = option.annotation
    if isinstance(kind, str):
        kind = eval(kind, dict(scope))  # noqa: S307
    default = MISSING if option.default is option.empty else option.default
    parts = (
        list(typing.get_args(kind))
        if typing.get_origin(kind) in (Union, types.UnionType)
        else [kind]
    )
    optional = type(None) in parts
    kind = Union[tuple(part for part in parts if part is not type(None))]  # noqa: UP007
    if typing.get_origin(kind) is Literal:
        kind = choice_type(*typing.get_args(kind))
        default = kind[default] if isinstance(default, str) and default != MISSING else default
    if isinstance(default, list | dict):
        return option.name, kind, field(default_factory=lambda: default)
    return option.name, Optional[kind] if optional else kind, field(default=default)  # noqa: UP045


def _scope(obj: Any) -> dict[str, Any]:
    return getattr(
        inspect.unwrap(getattr(obj, "__init__", obj) if inspect.isclass(obj) else obj),
        "__globals__",
        {},
    )
