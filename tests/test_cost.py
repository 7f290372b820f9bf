"""What a model costs: counted by torch, or worked out by hand."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from tests.helpers.components import (
    Case,
    Choice,
    attentions,
    cases,
    make,
    option,
    said,
    tokens,
    words_of,
)
from zoo import config, cost, models
from zoo.models import Decoder

LENGTH = 12


def counted(model: Decoder) -> int:
    """FLOPs of a forward pass by torch's counter, on the meta device, where no fused kernel
    escapes it.
    """
    with FlopCounterMode(display=False) as counter:
        model(tokens(2, LENGTH).to("meta"))
    return counter.get_total_flops()


@pytest.mark.parametrize("attn", attentions(), ids=said)
def test_flops_of_every_attention(attn: Choice) -> None:
    model = make(attn=attn).to("meta")
    assert 2 * LENGTH * cost.flops(model, LENGTH) == counted(model)


def test_flops_by_hand() -> None:
    """Kaplan et al. 2020, table 1: 2 a weight of every matrix, and 4·n·dim for scores and
    values; no look-up counts.
    """
    model = make(device="meta")
    matrices = 2 * (4 * 16**2 + 8 * 16**2) + 16 * 32
    assert cost.flops(model, 10) == 2 * matrices + 2 * 4 * 10 * 16


def test_layers_that_differ_are_counted_each() -> None:
    pattern: list[Any] = [
        {"ffn": "swiglu"},
        {"attn": {"head_dim": 8}},
        {"attn": {"name": "gqa", "kv_heads": 2}},
    ]
    model = make(device="meta", arch={"layers": 4, "pattern": pattern})
    assert 2 * LENGTH * cost.flops(model, LENGTH) == counted(model)


@cases()
def test_parts_add_up_to_the_whole(case: Case) -> None:
    model = make(**{case[0]: case[1]})
    parts = cost.parameters(model)
    assert sum(parts.values()) == sum(parameter.numel() for parameter in model.parameters())
    assert parts.keys() <= {"embed", "positions", "attn", "ffn", "norm", "head"}, (
        "parts that people know by name"
    )


# Radford et al. 2019, at dim 768, 12 layers, vocabulary 50,257 and 1,024 positions: 4·dim² and
# 8·dim² a layer
GPT2 = {
    "embed": 50_257 * 768,
    "positions": 1_024 * 768,
    "attn": 12 * (4 * 768**2 + 4 * 768),
    "ffn": 12 * (8 * 768**2 + 5 * 768),
    "norm": 25 * 2 * 768,
}


@pytest.mark.parametrize(
    ("words", "total", "head"),
    [([], 124_439_808, {}), (["head.tied=false"], 163_037_184, {"head": 50_257 * 768})],
)
def test_gpt2_by_parts(words: list[str], total: int, head: dict[str, int]) -> None:
    """The totals are those of transformers' GPT2LMHeadModel, tied and untied."""
    model = models.build(config.compose(["model=gpt2", *words]), device="meta")
    assert cost.parameters(model) == GPT2 | head
    assert sum(parameter.numel() for parameter in model.parameters()) == total


def test_a_layer_is_twelve_times_dim_squared() -> None:
    model = make(device="meta", arch={"dim": 768, "heads": 12, "layers": 1})
    assert cost.parameters(model)["attn"] == 4 * 768**2 == 2_359_296
    assert cost.parameters(model)["ffn"] == 8 * 768**2 == 4_718_592


@pytest.mark.parametrize(("attn", "kv_heads"), [("mha", 4), ("gqa", 2), ("mqa", 1)])
def test_the_cache_holds_keys_and_values(attn: str, kv_heads: int) -> None:
    """Shazeer 2019, section 3: two entries of the head's width for each KV head, layer and
    token; four bytes each.
    """
    told = cost.of(
        config.compose(
            [f"attn={attn}", "arch.dim=16", "arch.layers=3", "arch.heads=4", "arch.length=64"]
        )
    )
    assert told["kv_cache_bytes_per_token"] == 2 * 3 * kv_heads * 4 * 4
    assert told["kv_cache_bytes"] == 64 * told["kv_cache_bytes_per_token"]


def test_what_training_costs() -> None:
    """Three forward passes a step, backward included; 6·N beside it (Kaplan et al. 2020)."""
    words = [
        "arch.dim=16",
        "arch.layers=2",
        "arch.length=32",
        "loader.batch_size=4",
        "trainer.max_steps=10",
    ]
    told = cost.of(config.compose(words))
    assert told["flops_per_token"] == 3 * told["flops_per_token_forward"]
    assert told["training_flops"] == told["flops_per_token"] * 10 * 4 * 32
    assert (
        told["flops_per_token_6n"]
        == 6 * told["parameters"]
        == 6 * sum(told["parameters_by_part"].values())
    )


MEMORY = ["arch.dim=32", "arch.layers=2", "arch.length=32"]


def test_training_memory_is_the_state_and_a_micro_batch() -> None:
    """Weights, gradients and AdamW's two moments are 16 bytes a parameter; beside them each
    token takes its share.
    """
    small, large, split = (
        cost.training_memory(
            config.compose(
                [*MEMORY, f"loader.batch_size={size}", f"trainer.accumulate={accumulate}"]
            )
        )
        for size, accumulate in ((4, 1), (8, 1), (8, 2))
    )
    total = cost.of(config.compose(MEMORY))["parameters"]
    assert small - (large - small) == pytest.approx(16 * total, rel=0.01)
    assert split == small


@pytest.mark.parametrize(
    ("devices", "nodes", "accumulate", "micro"),
    [(1, 1, 1, 16), (2, 1, 1, 8), (2, 2, 1, 4), (2, 2, 2, 2)],
)
def test_a_micro_batch_is_what_one_device_has_of_a_batch_at_once(
    devices: int, nodes: int, accumulate: int, micro: int
) -> None:
    words = [
        "loader.batch_size=16",
        f"trainer.devices={devices}",
        f"trainer.nodes={nodes}",
        f"trainer.accumulate={accumulate}",
    ]
    plan = cost.layout(config.compose(words))
    assert (plan.micro, plan.gpus) == (micro, devices * nodes)


@pytest.mark.parametrize("backend", words_of(option("attn", "mha", "backend")))
def test_activations_are_those_that_autograd_keeps(backend: str) -> None:
    """What a forward pass on the CPU leaves referenced, and the logits' gradient, with which the
    backward begins.
    """
    configured = config.compose([*MEMORY, "loader.batch_size=4", f"attn.backend={backend}"])
    model, kept = models.build(configured), {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        logits = model(torch.zeros(4, 32, dtype=torch.long))
        torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), torch.zeros(4 * 32, dtype=torch.long)
        )
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    activations = (
        sum(x.untyped_storage().nbytes() for place, x in kept.items() if place not in own)
        + logits.nbytes
    )
    state = 16 * sum(parameter.numel() for parameter in model.parameters())
    assert cost.training_memory(configured) - state == pytest.approx(activations, rel=0.02)


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 B"), (1023, "1,023 B"), (1024, "1 KiB"), (3 * 2**40, "3 TiB")]
)
def test_bytes_in_the_unit_a_person_would_choose(number: int, shown: str) -> None:
    assert cost.size(number) == shown


def test_a_title_is_shown_as_it_was_typed() -> None:
    told = cost.of(config.compose([])) | {"training_memory_bytes": 1}
    console = Console(file=io.StringIO(), width=200)
    console.print(cost.table(told, "data.path=/tmp/[/red]"))
    assert "data.path=/tmp/[/red]" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_large_model_costs_no_memory() -> None:
    """LLaMA 7B (Touvron et al. 2023, table 2), counted as transformers' LlamaForCausalLM counts
    it.
    """
    words = [
        "arch.dim=4096",
        "arch.layers=32",
        "arch.heads=32",
        "arch.vocab=32000",
        "arch.length=2048",
        "pos=rope",
    ]
    words += ["ffn=swiglu", "ffn.hidden=11008", "norm=rms", "head.tied=false"]
    model = models.build(config.compose(words), device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == 6_738_415_616


def test_the_logits_of_a_large_vocabulary_do_not_count_all_at_once() -> None:
    """They are made in parts, of `zoo.objectives.loss.LOGITS_AT_ONCE` at most: twice the tokens
    cost no more.
    """
    words = [*MEMORY, "arch.vocab=65536", "loader.batch_size=16"]
    whole = 2 * 16 * 32 * 65536 * 4
    grown, model = (
        cost.training_memory(config.compose(words)),
        cost.of(config.compose(words))["parameters"],
    )
    assert grown < 16 * model + whole / 4
