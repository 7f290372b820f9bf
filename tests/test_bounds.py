"""Bounds in signatures: every number is accepted up to its bounds, and refused beyond them by a
sentence that names it.
"""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Gt, Interval, Le

from tests.helpers.components import chosen
from zoo import config, options, registry
from zoo.components.__main__ import menu
from zoo.config import discovery
from zoo.config.schema import Loader, Trainer
from zoo.cost.cluster_plan import Plan
from zoo.errors import ZooError
from zoo.registry import register

config.discover()

COMPONENTS = [
    (f"{group}={name}", entry.options, f"{group}.", chosen(group, name))
    for group in registry.groups()
    for name, entry in registry.entries(group).items()
]
SCHEMAS = [
    ("loader", Loader, "loader.", {}),
    ("trainer", Trainer, "trainer.", {}),
    ("plan", Plan, "", {}),
]
OWNERS = [(owner, *rest) for owner, *rest in [*COMPONENTS, *SCHEMAS]]
NUMBERS = (int, float)


def number(schema: type, name: str) -> type | None:
    """Whether a field is an int or a float (or null), or neither."""
    hint = typing.get_type_hints(schema)[name]
    return next((kind for kind in (hint, *typing.get_args(hint)) if kind in NUMBERS), None)


def every(matches: Callable[[type, str], bool]) -> list[Any]:
    """A case for each field, of every component and schema, that matches."""
    return [
        pytest.param(schema, path, needed, name, id=f"{owner} {name}")
        for owner, schema, path, needed in OWNERS
        for name in typing.get_type_hints(schema)
        if matches(schema, name)
    ]


def step(kind: type | None, value: float, towards: float) -> float:
    """The next number of a kind."""
    if kind is int:
        return int(value + math.copysign(1, towards))
    return math.nextafter(float(value), towards)


def coerced(schema: type, path: str, needed: dict[str, Any], name: str, value: Any) -> Any:
    return options.coerce(schema, needed | {name: value}, path)[name]


@pytest.mark.parametrize(
    ("schema", "path", "needed", "name"),
    every(lambda schema, name: name in options.bounds(schema)),
)
def test_a_number_is_accepted_at_its_bound_and_refused_beyond_it(
    schema: type, path: str, needed: dict[str, Any], name: str
) -> None:
    kind = number(schema, name)
    assert kind is not None, "only numbers have bounds"
    for bound in options.bounds(schema)[name]:
        outwards = -math.inf if bound.key in ("ge", "gt") else math.inf
        if bound.key in ("ge", "le"):
            inside, outside = bound.limit, step(kind, bound.limit, outwards)
        else:
            inside, outside = step(kind, bound.limit, -outwards), bound.limit
        assert coerced(schema, path, needed, name, inside) == inside
        said = f"{re.escape(path + name)} must be .*{bound.words} {bound.limit:,}.*, not "
        with pytest.raises(ZooError, match=f"^{said}{re.escape(str(kind(outside)))}$"):
            coerced(schema, path, needed, name, outside)


@pytest.mark.parametrize(
    ("schema", "path", "needed", "name"), every(lambda schema, name: number(schema, name) is float)
)
def test_a_float_that_is_not_finite_is_refused_by_name(
    schema: type, path: str, needed: dict[str, Any], name: str
) -> None:
    for value in (math.nan, math.inf, -math.inf):
        said = f"^{re.escape(path + name)}={value} must be a finite number$"
        with pytest.raises(ZooError, match=said):
            coerced(schema, path, needed, name, value)


@pytest.mark.parametrize(
    ("schema", "path", "needed", "name"), every(lambda schema, name: number(schema, name) is int)
)
def test_an_integer_that_is_too_large_is_refused_by_name(
    schema: type, path: str, needed: dict[str, Any], name: str
) -> None:
    with pytest.raises(ZooError, match=f"^{re.escape(path + name)} .*at most "):
        coerced(schema, path, needed, name, options.TOO_LARGE)


@pytest.mark.usefixtures("own_registry")
def test_every_way_to_write_bounds_is_read() -> None:
    class Bounded:
        def __init__(
            self,
            *,
            a: Annotated[float, Gt(0), Le(1)] = 1.0,
            b: Annotated[int, Ge(1)] | None = None,
            c: Annotated[int | None, Ge(1)] = None,
            d: Annotated[int, Interval(ge=2, lt=5)] = 2,
            e: Annotated[int, "a remark"] = 0,
            f: int = 0,
        ) -> None:
            self.values = (a, b, c, d, e, f)

    register("example", "bounded", "an example")(Bounded)
    schema = registry.entry("example", "bounded").options
    assert options.limits(schema) == {
        "a": {"gt": 0, "le": 1},
        "b": {"ge": 1},
        "c": {"ge": 1},
        "d": {"ge": 2, "lt": 5},
    }
    build = registry.build
    assert build("example", {"name": "bounded", "d": 4}).values == (1.0, None, None, 4, 0, 0)
    for option, said in (
        ("a", "example.a must be above 0 and at most 1, not 0.0"),
        ("b", "example.b must be at least 1 or null, not 0"),
        ("c", "example.c must be at least 1 or null, not 0"),
        ("d", "example.d must be at least 2 and below 5, not 0"),
    ):
        with pytest.raises(ZooError, match=f"^{said}$"):
            build("example", {"name": "bounded", option: 0})


@pytest.mark.usefixtures("own_registry")
def test_bounds_are_read_from_source_without_importing(tmp_path: Any, monkeypatch: Any) -> None:
    source = """
from typing import Annotated
from annotated_types import Ge, Lt
from zoo.registry import register
Share = Annotated[float, Ge(0), Lt(1)]
@register("example", "written", "an example")
def written(*, share: Share = 0.5, size: Annotated[int, Ge(1)] | None = None): ...
"""
    (tmp_path / "written_elsewhere.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    discovery.scan("written_elsewhere")
    component = registry.entry("example", "written")
    assert component.factory is None
    assert options.limits(component.options) == {"share": {"ge": 0, "lt": 1}, "size": {"ge": 1}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("norm.eps=-1", "norm.eps must be at least 0, not -1.0"),
        ("attn.dropout=1", "attn.dropout must be at least 0 and below 1, not 1.0"),
        (
            "pos=rope pos.scaling=linear pos.scaling.factor=0.5",
            "pos.scaling.factor must be at least 1, not 0.5",
        ),
        (
            "attn.qk_norm=rms attn.qk_norm.eps=-1",
            "attn.qk_norm.eps must be at least 0, not -1.0",
        ),
        (
            "arch=encoder_decoder objective=seq2seq arch.cross=gqa arch.cross.kv_heads=0",
            "arch.cross.kv_heads must be at least 1 or null, not 0",
        ),
        ("trainer.max_steps=0", "trainer.max_steps must be at least 1, not 0"),
        ("trainer.clip=0", "trainer.clip must be above 0 or null, not 0.0"),
        ("loader.workers=-1", "loader.workers must be at least 0, not -1"),
        ("arch.layers=20000", "arch.layers must be at least 1 and at most 10,000, not 20000"),
    ],
)
def test_composing_names_the_option_its_bounds_and_the_value(words: str, said: str) -> None:
    with pytest.raises(ZooError, match=f"^{re.escape(said)}$"):
        config.compose(words.split())


def test_the_menu_has_the_bounds_of_every_option() -> None:
    shown = menu()
    assert shown["norm"]["rms"]["bounds"] == {"eps": {"ge": 0}}
    assert shown["attn"]["mha"]["bounds"]["dropout"] == {"ge": 0, "lt": 1}
    for group, names in json.loads(json.dumps(shown)).items():
        for name, about in names.items():
            assert about["bounds"].keys() <= about["options"].keys(), (group, name)
    assert options.in_signs({"ge": 0, "lt": 1}) == " (≥ 0, < 1)"
    assert options.in_signs({"gt": 0, "le": 10_000}) == " (> 0, ≤ 10,000)"
    assert options.in_signs({}) == ""
