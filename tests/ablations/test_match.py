"""Budgets match within a per cent, by the option that a study names, or the study is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ablations import matching, plan
from ablations import study as studies
from tests.helpers.studies import TINY
from zoo import config, cost
from zoo.errors import ZooError


def made(factors: dict[str, list[Any]], **content: Any) -> plan.Plan:
    return plan.make(studies.parse({"name": "own", "common": TINY, "factors": factors} | content))


@pytest.mark.parametrize("model", ["gpt", "bert", "t5"])
@pytest.mark.parametrize(("kind", "unit"), [("params", "parameters"), ("flops", "training_flops")])
def test_families_are_matched_and_the_words_say_what_was_built(
    model: str, kind: str, unit: str
) -> None:
    found = made(
        {"ffn": ["ffn=relu", "ffn=geglu", "ffn=swiglu"], "attn": ["attn=mha", {"attn": "mqa"}]},
        baseline=[f"model={model}"],
        match=kind,
    )
    target = found.costs[0][unit]
    for arm, configured, costing in zip(found.arms, found.configs, found.costs, strict=True):
        assert abs(costing[unit] - target) <= 0.01 * target, arm
        composed = config.compose(arm.words)
        assert composed == configured, "the words alone give what was planned"
        assert costing["parameters"] == cost.of(composed)["parameters"]
        assert costing["training_flops"] == cost.of(composed)["training_flops"]
    wide = next(arm for arm in found.arms if arm.name == "attn=mqa")
    assert wide.matched.startswith("ffn.hidden"), "what attention saves goes to the feed-forward"


def test_within_a_per_cent_nothing_is_changed() -> None:
    assert [arm.matched for arm in made({"norm": ["norm=layer", "norm=rms"]}).arms] == ["", ""]


def test_experts_are_matched_by_what_a_token_passes_through() -> None:
    found = made(
        {
            "ffn": [
                "ffn=swiglu",
                {"ffn": "moe", "ffn.expert": {"name": "swiglu", "hidden": 50}, "ffn.experts": 4},
            ]
        },
        match="active",
        match_by=["ffn.expert.hidden", "ffn.hidden"],
    )
    dense, sparse = found.costs
    assert dense["active"] == dense["parameters"]
    assert abs(sparse["active"] - dense["active"]) <= 0.01 * dense["active"]
    assert sparse["parameters"] > 1.3 * sparse["active"]


def test_tokens_are_matched_by_steps() -> None:
    found = made({"batch": ["loader.batch_size=16", "loader.batch_size=8"]}, match="tokens")
    assert found.costs[0]["tokens"] == found.costs[1]["tokens"]
    assert found.arms[1].matched == "trainer.max_steps 300 → 600"


def test_a_width_is_a_multiple_of_what_it_must_be() -> None:
    found = made(
        {"ffn": ["ffn=relu", {"ffn": "swiglu", "ffn.hidden": 100, "ffn.multiple_of": 8}]},
        match="none",
    )
    assert matching.step(found.configs[1], "ffn.hidden") == 8
    found = made(
        {"depth": ["arch.layers=2", "arch.layers=3"]},
        match_by="arch.dim",
        common=[*TINY, "arch.dim=480"],
    )
    assert found.configs[1]["arch"]["dim"] % 8 == 0


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"factors": {"ffn": ["ffn=relu", "ffn=swiglo"]}}, "no such ffn"),
        ({"factors": {"depth": ["arch.layers=2", "arch.layers=9"]}}, "arm arch.layers=9: "),
        ({"factors": {"ffn": ["ffn.hidden=64", "ffn.hidden=128"]}}, "its ffn.hidden is given"),
        (
            {"factors": {"depth": ["arch.layers=2", "arch.layers=3"]}, "match_by": "ffn.wide"},
            "no arm has ffn.wide",
        ),
        (
            {"factors": {"ffn": ["ffn=relu", "ffn=gelu"]}, "match_by": "ffn.hiden"},
            "match_by: no arm has ffn.hiden",
        ),
        (
            {"factors": {"ffn": ["ffn=relu", "ffn=gelu"]}, "tune": {"grid": {"optim.rate": [1]}}},
            "tune.grid: no option optim.rate",
        ),
        (
            {
                "factors": {"ffn": ["ffn=relu", "ffn=gelu"]},
                "tune": {"grid": {"optim.lr": [1]}, "seeds": [0]},
            },
            "must not be among",
        ),
    ],
)
def test_what_cannot_be_matched_is_refused(told: dict[str, Any], said: str) -> None:
    with pytest.raises(ZooError) as refused:
        plan.make(studies.parse({"name": "own", "common": TINY} | told))
    assert said in str(refused.value)


def test_none_matches_nothing() -> None:
    found = made({"depth": ["arch.layers=2", "arch.layers=9"]}, match="none")
    assert found.costs[1]["parameters"] > 2 * found.costs[0]["parameters"]


def test_a_crooked_cost_is_solved_in_few_tries() -> None:
    tries: list[int] = []

    def cost(width: int) -> int:
        tries.append(width)
        return 3 * width**2 + 1000 * width

    assert matching.solve(cost, 64, cost(800), step=16) == 800
    assert len(tries) < 16


@pytest.mark.parametrize("width", [20, 64, 333, 1200])
def test_solving_bisects_where_the_secant_leads_nowhere_new(width: int) -> None:
    """Between two widths that no secant brings closer, the nearest of all multiples is found."""

    def cost(width: int) -> int:
        return width if width < 1000 else width + 5000

    goal = cost(8 * width) + 3
    best = min(range(8, 16_000, 8), key=lambda trial: abs(cost(trial) - goal))
    assert matching.solve(cost, 64, goal, step=8) == best


def test_two_hundred_arms_are_planned_while_one_waits() -> None:
    factors = {
        "lr": [f"optim.lr={rate}e-4" for rate in range(1, 11)],
        "depth": [f"arch.layers={n}" for n in (1, 2, 3, 4)],
        "ffn": ["ffn=relu", "ffn=gelu", "ffn=swiglu", "ffn=geglu", "ffn=relu2"],
    }
    begun = time.perf_counter()
    found = made(factors, design="factorial", match="none")
    assert len(found.arms) == len({repr(configured) for configured in found.configs}) == 200
    print(f"200 arms planned in {time.perf_counter() - begun:.1f} s")
