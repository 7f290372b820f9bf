"""The role of each parameter: every one has one, whatever component the registry holds."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from torch import nn

from tests.helpers.components import Case, cases, make
from zoo import config, cost, models
from zoo.models.roles import roles

PARTS = {"embed", "head", "norm", "positions", "attn", "cross", "ffn", "residual"}


def sizes(model: nn.Module) -> dict[str, int]:
    return {name: parameter.numel() for name, parameter in model.named_parameters()}


@cases()
def test_each_parameter_has_one_role_and_their_sums_are_the_total(case: Case) -> None:
    model = make(**{case[0]: case[1]})
    known, numbers = roles(model), sizes(model)
    assert list(known) == list(numbers)
    by_kind: Counter[str] = Counter()
    by_part: Counter[str] = Counter()
    for name, role in known.items():
        by_kind[role.kind] += numbers[name]
        by_part[role.part] += numbers[name]
        assert role.is_matrix == (model.get_parameter(name).ndim >= 2), name
        assert not role.splits or sum(role.splits.values()) == len(model.get_parameter(name)), name
    assert by_kind.total() == by_part.total() == sum(numbers.values())
    assert set(by_part) <= PARTS
    assert dict(by_part) == cost.parameters(model)


@cases()
def test_a_role_names_the_block_layer_and_sublayer_of_its_parameter(case: Case) -> None:
    """The names of parameters are the judge: a person reads the place off them."""
    for name, role in roles(make(**{case[0]: case[1]})).items():
        place = re.match(r"(stack\.blocks\.(\d+))\.", name)
        assert role.block == (place[1] if place else None), name
        assert role.layer == (int(place[2]) if place else None), name
        named = [word for word in name.split(".") if word in ("attn", "cross", "ffn")]
        assert role.sublayer == (named[0] if named else None), name


@cases("attn", "ffn")
def test_one_projection_of_each_sublayer_or_expert_writes_into_the_residual_stream(
    case: Case,
) -> None:
    model = make(**{case[0]: case[1]})
    writers = [name for name, role in roles(model).items() if role.writes_residual]
    experts = [name for name in writers if ".experts." in name]
    assert all(name.rsplit(".", 2)[-2] == "out" for name in writers)
    owners = {name.rsplit(".", 1)[0] for name in writers if name not in experts}
    residuals = [role.sublayer for name, role in roles(model).items() if name in writers]
    assert set(residuals) <= {"attn", "ffn"}
    assert len(owners) >= len(model.stack.blocks)


def test_a_tied_weight_has_one_role_and_an_untied_head_its_own() -> None:
    tied, untied = (
        roles(make(head={"name": "linear", "tied": choice})) for choice in (True, False)
    )
    assert [name for name, role in tied.items() if role.kind in ("embedding", "head")] == [
        "embed.weight"
    ]
    assert tied["embed.weight"].kind == "embedding"
    assert untied["head.weight"].kind == "head"
    model: Any = nn.Module()
    model.first, model.second = nn.Linear(3, 3), nn.Linear(3, 3)
    model.second.weight = model.first.weight
    assert list(roles(model)) == ["first.weight", "first.bias", "second.bias"]


def test_norms_are_gains_and_biases_of_a_part_of_their_own() -> None:
    known = roles(make(norm="layer"))
    assert {role.kind for role in known.values() if role.part == "norm"} == {"gain", "bias"}
    assert known["stack.norm.weight"].part == "norm"
    assert known["stack.norm.weight"].kind == "gain"


def test_tables_are_what_is_looked_up_beside_the_tokens() -> None:
    model = make(embed="segments", pos="learned")
    tables = {name for name, role in roles(model).items() if role.kind == "table"}
    assert tables == {"embed.segment.weight", "stack.positions.0.weight"}
    assert {roles(model)[name].part for name in tables} == {"embed", "positions"}


def test_fused_projections_are_named_as_if_each_had_a_module() -> None:
    name = "stack.blocks.0.attn.sublayer.qkv.weight"
    role = roles(make(attn="mqa"))[name]
    assert [(part, rows) for part, rows, _ in role.projections(name)] == [
        (name.replace("qkv", part), rows) for part, rows in (("q", 16), ("k", 4), ("v", 4))
    ]
    assert [part.projection for _, _, part in role.projections(name)] == ["q", "k", "v"]


@pytest.mark.parametrize("model", ["t5", "deepseek_v3"])
def test_the_roles_of_published_models_sum_to_their_totals(model: str) -> None:
    made = models.build(config.compose([f"model={model}", "size=tiny"]), device="meta")
    known, numbers = roles(made), sizes(made)
    assert list(known) == list(numbers)
    assert {role.part for role in known.values()} <= PARTS
    writers = {role.sublayer for role in known.values() if role.writes_residual}
    assert writers == ({"attn", "cross", "ffn"} if model == "t5" else {"attn", "ffn"})
