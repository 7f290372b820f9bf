"""Typed options: the fields that annotations declare, values coerced to them, and numbers kept
within their bounds.
"""

from __future__ import annotations

import enum
import functools
import inspect
import math
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from typing import Any, Literal, NamedTuple, Optional, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt
from omegaconf import MISSING, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zoo.errors import ZooError, first_line

TOO_LARGE = 2**31  # for a size or a number of things: torch, too, counts in 64 bits
Component = Any  # annotates an option that is a choice itself: a name, or a mapping with a `name`


class Bound(NamedTuple):
    """One end of the range of a number, as `Annotated[float, Ge(0)]` declares it."""

    key: str  # ge, gt, le or lt
    words: str
    holds: Callable[[Any, Any], bool]
    limit: float

    def __str__(self) -> str:
        return f"{self.words} {self.limit:,}"


FORMS = {
    Ge: ("ge", "at least", operator.ge),
    Gt: ("gt", "above", operator.gt),
    Le: ("le", "at most", operator.le),
    Lt: ("lt", "below", operator.lt),
}
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@functools.cache
def bounds(schema: type) -> dict[str, tuple[Bound, ...]]:
    """The bounds of each field of a dataclass that has any."""
    hints = get_type_hints(schema, include_extras=True)
    found = {name: tuple(_bounds(hint)) for name, hint in hints.items()}
    return {name: both for name, both in found.items() if both}


def _bounds(hint: Any) -> Iterator[Bound]:
    if _is_union(hint):
        for part in get_args(hint):
            yield from _bounds(part)
    for metadata in getattr(hint, "__metadata__", ()):
        for one in metadata if isinstance(metadata, GroupedMetadata) else (metadata,):
            if form := FORMS.get(type(one)):
                yield Bound(*form, getattr(one, form[0]))


def limits(schema: type) -> dict[str, dict[str, float]]:
    """The bounds as plain values, for programs: {eps: {ge: 0}}."""
    return {
        name: {bound.key: bound.limit for bound in declared}
        for name, declared in bounds(schema).items()
    }


def in_signs(limits: Mapping[str, float]) -> str:
    """The limits of one option as the end of a line about it: ` (≥ 0, < 1)`; nothing where there
    are none.
    """
    signs = ", ".join(f"{SIGNS[key]} {limit:,}" for key, limit in limits.items())
    return f" ({signs})" if signs else ""


def coerce(schema: type, values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """These values, coerced to the types of a dataclass and within its bounds.

    Raises ZooError, whose sentence begins with the path and the key of what is wrong.
    """
    for option in fields(schema):
        value = values.get(option.name)
        if get_origin(option.type) is list and not isinstance(value, list | ListConfig | None):
            name = f"{path}{option.name}"
            raise ZooError(f"{name} must be a list, as in {name}=[a,b], not {value!r}")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), values)
        plain: Any = OmegaConf.to_container(merged, enum_to_str=True)
    except OmegaConfBaseException as error:
        raise ZooError(f"{path}{error.full_key or error.key}: {first_line(error)}") from error
    except OverflowError as error:  # OmegaConf's, for a number of hundreds of digits
        integers = [key for key, value in values.items() if isinstance(value, int)]
        largest = max(integers, key=lambda key: abs(values[key]))
        raise ZooError(f"{path}{largest}: {first_line(error)}") from error
    for key, value in plain.items():
        if isinstance(value, str) and "${" in value:  # a loaded file could read the environment
            raise ZooError(f"{path}{key}={value!r} is not a plain value")
        if isinstance(value, int | float):
            _check_number(f"{path}{key}", value, schema, str(key))
    return {str(key): value for key, value in plain.items()}


def _check_number(name: str, value: float, schema: type, key: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ZooError(f"{name}={value} must be a finite number")
    declared = bounds(schema).get(key, ())
    if not all(bound.holds(value, bound.limit) for bound in declared):
        null = " or null" if _may_be_null(schema, key) else ""
        raise ZooError(f"{name} must be {' and '.join(map(str, declared))}{null}, not {value}")
    if isinstance(value, int) and abs(value) >= TOO_LARGE:
        raise ZooError(f"{name} is more than any model has: at most {TOO_LARGE - 1:,}")


def _may_be_null(schema: type, key: str) -> bool:
    return type(None) in get_args(get_type_hints(schema)[key])


def choice_type(*choices: str) -> Any:
    """A type that allows these choices only."""
    return enum.Enum("words", [(choice, choice) for choice in choices])


def field_of(option: inspect.Parameter, scope: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """A keyword-only parameter as a field of a dataclass, its annotation evaluated in a scope."""
    hint: Any = option.annotation
    if isinstance(hint, str):
        hint = eval(hint, dict(scope))  # noqa: S307
    default = MISSING if option.default is option.empty else option.default
    parts = get_args(hint) if _is_union(hint) else (hint,)
    values = tuple(part for part in parts if part is not type(None))
    kind: Any = Union[values]  # noqa: UP007
    if get_origin(kind) is Literal:  # which OmegaConf does not know: an Enum instead
        kind = choice_type(*get_args(kind))
        default = kind[default] if default in kind.__members__ else default
    if len(values) < len(parts):
        kind = Optional[kind]  # noqa: UP045
    if isinstance(default, list | dict):
        return option.name, kind, field(default_factory=lambda: default)
    return option.name, kind, field(default=default)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)
