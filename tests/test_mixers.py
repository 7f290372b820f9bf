"""What stands in attention's slot and is not plain attention: latent attention and recurrence, against their judges."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import close, gradients, loss_of, make, shaken, tokens
from zoo import config, cost, registry
from zoo.context import Cache, Context
from zoo.registry import ZooError

LENGTH = 12
LATENT = {"name": "mla", "kv_rank": 12, "nope_dim": 6, "rope_dim": 4, "value_dim": 5, "bias": True}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize("q_rank", [None, 8])
def test_latent_attention_is_that_of_transformers(version: str, q_rank: int | None) -> None:
    pytest.importorskip("transformers")
    theirs_of = importlib.import_module(f"transformers.models.deepseek_{version}.modeling_deepseek_{version}")
    configured = getattr(importlib.import_module("transformers"), f"Deepseek{version.upper()}Config")(
        hidden_size=16, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=q_rank, kv_lora_rank=12, qk_nope_head_dim=6,
        qk_rope_head_dim=4, v_head_dim=5, attention_bias=True, attn_implementation="eager", head_dim=4,
    )
    theirs = getattr(theirs_of, f"Deepseek{version.upper()}Attention")(configured, 0).requires_grad_(False)
    rotary = getattr(theirs_of, f"Deepseek{version.upper()}RotaryEmbedding")(configured)
    norm = {"name": "rms", "eps": theirs.kv_a_layernorm.variance_epsilon}
    ours = registry.build("attn", LATENT | {"q_rank": q_rank, "norm": norm}, 16, 4, True).requires_grad_(False)
    for number, parameter in enumerate(theirs.parameters()):
        parameter.copy_(draw(*parameter.shape, seed=number) / 3)

    if q_rank is None:
        first, first_bias = theirs.q_proj.weight, torch.zeros(40)
    else:
        first, first_bias = theirs.q_a_proj.weight, theirs.q_a_proj.bias
        ours.q.load_state_dict(theirs.q_b_proj.state_dict())
        ours.q_norm.load_state_dict(theirs.q_a_layernorm.state_dict())
    ours.down.weight.copy_(torch.cat([first, theirs.kv_a_proj_with_mqa.weight]))
    ours.down.bias.copy_(torch.cat([first_bias, theirs.kv_a_proj_with_mqa.bias]))
    each = theirs.kv_b_proj.weight.unflatten(0, (4, 11)).split([6, 5], 1)  # theirs are head by head
    ours.up.weight.copy_(torch.cat([part.flatten(0, 1) for part in each]))
    ours.kv_norm.load_state_dict(theirs.kv_a_layernorm.state_dict())
    ours.out.load_state_dict(theirs.o_proj.state_dict())

    x, places = draw(2, 9, 16, seed=99), torch.arange(9)[None]
    rope = registry.build("pos", {"name": "rope", "pairing": "interleaved"}, 16, 4, ours.rotary_dim, 16, True)
    actual = ours(x, Context(places, True, 9, rotate=rope.rotate(places)))
    mask = torch.full((9, 9), -torch.inf).triu(1)[None, None]
    close(actual, theirs(x, position_embeddings=rotary(x, places), attention_mask=mask)[0])


def test_the_cache_holds_the_latent_and_the_turned_key_only() -> None:
    """DeepSeek-V2 2024, table 1: (kv_rank + rope_dim) entries a token and layer, where attention keeps 2·heads·width."""
    words = ["attn=mla", "pos=rope", "arch.dim=16", "arch.layers=3", "arch.heads=4", "attn.kv_rank=12", "attn.rope_dim=6"]
    told = cost.of(config.compose(words))
    assert told["kv_cache_bytes_per_token"] == 3 * (12 + 6) * 4
    model, cache = make(attn=LATENT), Cache(LENGTH)
    model(tokens(1), cache=cache)
    assert cache.nbytes == LENGTH * 2 * (12 + 4) * 4


def test_a_query_may_have_a_latent_too() -> None:
    model = shaken(make(attn=LATENT | {"q_rank": 8}))
    with torch.no_grad():
        cache = Cache(LENGTH)
        parts = [model(tokens()[:, at], cache=cache) for at in (slice(0, 5), slice(5, 6), slice(6, LENGTH))]
        close(torch.cat(parts, 1), model(tokens()))
    for name, gradient in gradients(model, loss_of(model)).items():
        assert gradient.abs().max() > 1e-7, name


@pytest.mark.parametrize("word", ["kv_rank", "q_rank", "nope_dim", "rope_dim", "value_dim"])
def test_a_latent_without_width_is_refused_by_name(word: str) -> None:
    with pytest.raises(ZooError, match=f"attn.{word} must be at least 1"):
        make(attn={"name": "mla", word: 0})


def test_latent_attention_starts_each_projection_under_its_own_name() -> None:
    """The keys and values of the latent and the shared key are different draws; other ranks leave the queries as they were."""
    one, other = (dict(make(attn={"name": "mla", "kv_rank": rank}).named_parameters()) for rank in (16, 8))
    down = "stack.blocks.0.attn.sublayer.down.weight"
    assert torch.equal(one[down][:24], other[down][:24])
    up: Any = one["stack.blocks.0.attn.sublayer.up.weight"]
    assert not torch.equal(up[:16], up[16:])
