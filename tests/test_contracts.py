"""A member from outside that cannot be made or called as its group is, is named with what it
must take, before any training.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers.components import BASE, make
from zoo import contracts, registry
from zoo.errors import ZooError
from zoo.registry import register

ASKED = [(group, asked) for group, (_, *each) in contracts.CONTRACTS.items() for asked in each]


def member(group: str, spoilt: str = "", **instead: Any) -> Any:
    """A stand-in for a member of a group, of which one thing that is asked is something else."""
    parts: dict[str, Any] = {}
    for asked in contracts.CONTRACTS[group][1:]:
        name = asked.partition("(")[0]
        parts[name] = lambda *_, **__: None
    parts |= instead
    parts = {name: part for name, part in parts.items() if name != spoilt}
    called = {name: part for name, part in parts.items() if name == "__call__"}
    return type("Member", (SimpleNamespace,), called)(
        **{name: part for name, part in parts.items() if name not in called}
    )


def test_every_group_says_what_it_asks() -> None:
    assert set(registry.groups()) <= set(contracts.CONTRACTS)


@pytest.mark.parametrize("group", contracts.CONTRACTS)
def test_who_takes_what_is_asked_fits(group: str) -> None:
    assert contracts.misfit(group, member(group)) is None


@pytest.mark.parametrize(("group", "asked"), ASKED, ids=lambda value: value.partition("(")[0])
def test_whatever_is_missing_or_takes_something_else_is_named(group: str, asked: str) -> None:
    name = asked.partition("(")[0]
    said = contracts.misfit(group, member(group, spoilt=name))
    assert said is not None
    assert asked in said or repr(name) in said
    if "(" in asked:
        nothing = (lambda self: None) if name == "__call__" else lambda: None
        takes = (lambda other=1, *, more: other) if asked.endswith("()") else nothing
        said = contracts.misfit(group, member(group, **{name: takes}))
        assert said is not None
        assert f"its {name} must take {asked.removeprefix(name)}, not (" in said


class Plain(nn.Module):
    """What somebody writes who has not read what a group's members take."""

    rotary_dim, limit = 0, None

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self) -> None: ...


@pytest.mark.parametrize("group", [group for group in BASE if group != "init"])
@pytest.mark.usefixtures("own_registry")
def test_a_component_from_outside_is_refused_as_the_model_is_made(group: str) -> None:
    register(group, "mine", "from outside")(Plain)
    with pytest.raises(
        ZooError, match=rf"^{group}=mine from tests.test_contracts cannot be used: it(s| has)"
    ) as refused:
        make(device="meta", **{group: "mine"})
    assert contracts.CONTRACTS[group][1].removeprefix("forward") in str(refused.value)


@pytest.mark.parametrize("group", [group for group in BASE if group != "init"])
@pytest.mark.usefixtures("own_registry")
def test_so_is_one_that_is_made_with_something_else(group: str) -> None:
    @register(group, "mine", "from outside")
    class Mine(Plain):
        def __init__(self, *, size: int = 3) -> None:
            super().__init__()

    said = f"{group}=mine must take {contracts.CONTRACTS[group][0]} beside its options"
    with pytest.raises(ZooError, match=re.escape(said)):
        make(device="meta", **{group: "mine"})
