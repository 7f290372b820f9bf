"""The one registry: options follow from a signature, mistakes are met by name, and reading tells
what running tells.
"""

from __future__ import annotations

import enum
import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.helpers.components import chosen
from zoo import config, registry
from zoo.config import discovery
from zoo.errors import ZooError
from zoo.registry import Component, Entry, register

own_registry = pytest.mark.usefixtures("own_registry")
EVERY = [(group, name) for group in registry.groups() for name in registry.entries(group)]
HOUSE = Path(registry.__file__).parent
SOURCE = '''
"""A module of somebody else's."""
from torch import nn
from zoo.registry import register

@register("norm", "{name}")
class Mine(nn.Module):
    """My norm (me {name}): x * by."""
    def __init__(self, dim: int, *, by: float = 2.0) -> None:
        super().__init__()
        self.by = by
    def forward(self, x):
        return x * self.by
'''


class Example:
    """An example (Somebody 2020): of every kind
    of option.

    More about it.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        size: int,
        rate: float = 0.5,
        on: bool = True,
        kind: Literal["a", "b"] = "b",
        most: int | None = None,
        maybe: Literal["c", "d"] | None = None,
        part: Component = None,
        rows: list[int] = [1, 2],  # noqa: B006
        label: str = "x",
    ) -> None:
        self.wiring = dim, heads
        self.given = {
            "size": size,
            "rate": rate,
            "on": on,
            "kind": kind,
            "most": most,
            "maybe": maybe,
        }
        self.part, self.rows, self.label = part, rows, label


def told(entry: Entry) -> dict[str, Any]:
    """What an entry declares, comparably: the words of an enum stand for it."""

    def kind(option: Any) -> str:
        words = [
            word
            for kind in (option.type, *getattr(option.type, "__args__", ()))
            if isinstance(kind, type) and issubclass(kind, enum.Enum)
            for word in kind.__members__
        ]
        return f"{words}, optional: {'None' in str(option.type)}" if words else str(option.type)

    def default(option: Any) -> Any:
        made = option.default_factory
        return made() if callable(made) else getattr(option.default, "name", option.default)

    options = [(option.name, kind(option), default(option)) for option in fields(entry.options)]
    return {"about": entry.about, "module": entry.module, "options": options}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Writes a module that can be imported, and forgets it after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        return name

    return write


@own_registry
def test_options_are_the_keyword_only_parameters() -> None:
    register("example", "one")(Example)
    assert [option.name for option in fields(registry.entry("example", "one").options)] == [
        "name",
        "size",
        "rate",
        "on",
        "kind",
        "most",
        "maybe",
        "part",
        "rows",
        "label",
    ]
    assert (
        registry.entry("example", "one").about
        == "An example (Somebody 2020): of every kind of option."
    )
    built = registry.build("example", {"name": "one", "size": 3}, 7)
    assert built.wiring == (7, 1)
    assert built.given == {
        "size": 3,
        "rate": 0.5,
        "on": True,
        "kind": "b",
        "most": None,
        "maybe": None,
    }
    assert (built.part, built.rows, built.label) == (None, [1, 2], "x")


@own_registry
def test_options_that_are_given_arrive() -> None:
    register("example", "one")(Example)
    part = {"name": "rms", "eps": 0.5}
    given = {"size": 3, "rate": 1, "on": False, "kind": "a", "most": 4, "maybe": "c"}
    built = registry.build("example", {"name": "one", "part": part, "rows": [], **given}, 7, 8)
    assert built.wiring == (7, 8)
    assert built.given == given
    assert (built.part, built.rows) == (part, [])


@own_registry
def test_a_preset_is_no_option_and_arrives() -> None:
    register("example", "small", "a small one", size=1, kind="a")(Example)
    assert registry.entry("example", "small").about == "a small one"
    built = registry.build("example", "small", 7)
    assert (built.given["size"], built.given["kind"]) == (1, "a")
    with pytest.raises(ZooError, match="no option 'size'"):
        registry.build("example", {"name": "small", "size": 2}, 7)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "example=one needs example.size=..."),
        ({"size": "three"}, "example.size: .*three"),
        ({"size": 1.5}, "example.size: .*1.5"),
        ({"size": None}, "example.size"),
        ({"size": 1, "rate": "fast"}, "example.rate: .*fast"),
        ({"size": 1, "on": "perhaps"}, "example.on: .*perhaps"),
        ({"size": 1, "kind": "e"}, r"example.kind: .*'e'.*\[a, b\]"),
        ({"size": 1, "kind": None}, "example.kind"),
        ({"size": 1, "maybe": "a"}, "example.maybe: .*'a'"),
        ({"size": 1, "rows": ["x"]}, "example.rows"),
        ({"size": 1, "siez": 2}, "no option 'siez': did you mean 'size'"),
        ({"size": 1, "dim": 2}, "no option 'dim'"),
        ({"size": 1, "label": "${oc.env:HOME}"}, "not a plain value"),
        ({"size": 1, "_target_": "os.system"}, "no option '_target_'"),
    ],
)
@own_registry
def test_a_wrong_option_is_refused_by_name(wrong: dict[str, Any], said: str) -> None:
    register("example", "one")(Example)
    with pytest.raises(ZooError, match=said):
        registry.resolve("example", {"name": "one", **wrong})


@pytest.mark.parametrize(
    ("group", "name", "said"),
    [
        ("norm", "rsm", "unknown norm 'rsm': did you mean 'rms'.*there are: layer, rms"),
        ("nrom", "rms", "unknown group 'nrom': did you mean 'norm'"),
        ("norm", "", "unknown norm ''"),
        ("norm", "xyzzy", r"unknown norm 'xyzzy' \(there are"),
    ],
)
def test_a_wrong_word_is_met_with_the_right_one(group: str, name: str, said: str) -> None:
    with pytest.raises(ZooError, match=said):
        registry.resolve(group, name)


@pytest.mark.parametrize(
    "nested", [{"_target_": "os.system"}, {"name": "rms", "_target_": "os.system"}, "os.system"]
)
def test_a_nested_choice_runs_nothing_of_its_own(nested: Any) -> None:
    with pytest.raises(ZooError, match="norm"):
        registry.build("attn", {"name": "mha", "qk_norm": nested}, 16, 4, True)


@own_registry
def test_a_name_declared_by_two_modules_is_refused(module: Callable[[str, str], str]) -> None:
    for name in ("first_of_two", "second_of_two"):
        module(name, SOURCE.format(name="contested"))
    importlib.import_module("first_of_two")
    with pytest.raises(
        ZooError, match="norm=contested is declared twice: in first_of_two and in second_of_two"
    ):
        importlib.import_module("second_of_two")
    with pytest.raises(ZooError, match="declared twice"):
        discovery.scan("second_of_two")


@own_registry
def test_a_name_that_the_zoo_has_is_not_taken_over(module: Callable[[str, str], str]) -> None:
    module("usurper", SOURCE.format(name="rms"))
    with pytest.raises(ZooError, match="norm=rms is declared twice"):
        importlib.import_module("usurper")


@own_registry
def test_a_module_imported_before_composing_has_its_words(
    module: Callable[[str, str], str],
) -> None:
    importlib.import_module(module("imported_before", SOURCE.format(name="imported")))
    composed = config.compose(["norm=imported", "norm.by=3"])
    assert composed["norm"] == {"name": "imported", "by": 3.0}
    assert registry.build("norm", composed["norm"], 4)(2.0) == 6.0
    for wrong, said in (
        ("norm.bye=1", "mean 'by'"),
        ("norm.by=abc", "norm.by"),
        ("norm=importde", "mean 'imported'"),
    ):
        with pytest.raises(ZooError, match=said):
            config.compose(["norm=imported", wrong])


@own_registry
def test_an_entry_point_is_found_without_being_imported(
    module: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module("installed_elsewhere", SOURCE.format(name="installed"))
    point = importlib.metadata.EntryPoint("mine", "installed_elsewhere", discovery.ENTRY_POINTS)
    real = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda **asked: [point] if asked == {"group": "zoo.components"} else real(**asked),
    )
    discovery.discover(tmp_path / "no_package")
    assert config.compose(["norm=installed"])["norm"] == {"name": "installed", "by": 2.0}
    assert "installed_elsewhere" not in sys.modules
    assert registry.build("norm", "installed", 4)(2.0) == 4.0
    assert "installed_elsewhere" in sys.modules


@own_registry
def test_scanning_finds_what_running_declares() -> None:
    """Names, types, defaults and descriptions, for every component there is."""
    for group, name in EVERY:
        registry.entry(group, name).load()
    run = {(group, name): told(registry.entry(group, name)) for group, name in EVERY}
    registry._entries.clear()
    discovery.discover(HOUSE)
    found = [(group, name) for group in registry.groups() for name in registry.entries(group)]
    scanned = {key: told(registry.entry(*key)) for key in found}
    assert scanned.keys() == run.keys()
    for key, entry in run.items():
        assert scanned[key] == entry, key
        assert registry.entry(*key).factory is None


@own_registry
def test_scanning_reads_inheritance_and_refuses_what_it_cannot_read(
    module: Callable[[str, str], str],
) -> None:
    head = "from typing import Literal\nfrom zoo.registry import register\n"
    parent = (
        "class Parent:\n    def __init__(self, dim, *, by: Literal['a', 'b'] | None = None): pass\n"
    )
    marks = "@register('example', 'child', preset=1)\n@register('example', 'twin', 'a twin')\n"
    child = marks + "class Child(Parent):\n    '''A child.'''\n"
    discovery.scan(module("heirs", head + parent + child))
    assert told(registry.entry("example", "child"))["options"][1][0] == "by"
    assert registry.entry("example", "twin").about == "a twin"
    assert registry.resolve("example", {"name": "child", "by": "a"}) == {"name": "child", "by": "a"}
    computed = "@register('example', 'computed')\ndef made(*, by: int = len('abc')): pass\n"
    with pytest.raises(ZooError, match="line 4: the default of option 'by' must be a literal"):
        discovery.scan(module("computed", head + computed))
    named = "@register('example', 'named')\ndef made(*, name: str = 'x'): pass\n"
    with pytest.raises(ZooError, match="example=named: `name` is what a choice is called"):
        discovery.scan(module("named", head + named))
    with pytest.raises(ZooError, match="'no_such_module' not found"):
        discovery.scan("no_such_module")


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_every_component_says_what_it_is(group: str, name: str) -> None:
    about = registry.entry(group, name).about
    assert 10 < len(about) < 200, about
    assert "\n" not in about


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_every_default_is_a_value_that_it_allows(group: str, name: str) -> None:
    """A choice resolves, and resolving what that gives changes nothing."""
    full = registry.resolve(group, chosen(group, name))
    assert full["name"] == name
    assert registry.resolve(group, full) == full


@own_registry
def test_two_builds_share_no_default() -> None:
    register("example", "one")(Example)
    first, second = (registry.build("example", {"name": "one", "size": 1}, 7) for _ in range(2))
    first.rows.append(9)
    assert second.rows == [1, 2]
    assert registry.build("example", {"name": "one", "size": 1}, 7).rows == [1, 2]
