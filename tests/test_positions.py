"""Positions against those of transformers: buckets, slopes, and every way to stretch RoPE."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.helpers.components import close
from zoo import registry
from zoo.components.pos import frequencies

pytest.importorskip("transformers")
CPU = torch.device("cpu")


@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20), (64, 1000), (4, 3)])
@pytest.mark.parametrize("causal", [True, False])
def test_the_buckets_of_t5(causal: bool, buckets: int, farthest: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    position = registry.build(
        "pos", {"name": "t5", "buckets": buckets, "farthest": farthest}, 16, 4, 4, 16, causal
    )
    ahead = torch.arange(-5000, 5001)
    theirs = T5Attention._relative_position_bucket(ahead, not causal, buckets, farthest)
    assert torch.equal(position.bucket(ahead), theirs)
    assert theirs.unique().numel() == buckets - (not causal), (
        "a wide range reaches all; no key lies 0 tokens ahead"
    )


@pytest.mark.parametrize("causal", [True, False])
def test_the_bias_of_t5(causal: bool) -> None:
    """The last queries of more keys, from a table of which each entry is its own bucket and
    head.
    """
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    configured = T5Config(d_model=16, d_kv=4, num_heads=4, is_decoder=causal)
    theirs = T5Attention(configured, has_relative_attention_bias=True, layer_idx=0).requires_grad_(
        False
    )
    position = registry.build("pos", "t5", 16, 4, 4, 16, causal).requires_grad_(False)
    theirs.relative_attention_bias.weight.copy_(torch.arange(128.0).view(32, 4))
    position.weight.copy_(theirs.relative_attention_bias.weight)
    assert torch.equal(position.bias(200, 200, CPU), theirs.compute_bias(200, 200, device=CPU))
    assert torch.equal(position.bias(3, 200, CPU), position.bias(200, 200, CPU)[:, :, -3:])


@pytest.mark.parametrize("heads", range(1, 41))
def test_the_slopes_of_alibi(heads: int) -> None:
    """As Press 2021 published them and BLOOM has them, for any number of heads."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    position = registry.build("pos", "alibi", 8 * heads, heads, 8, 16, True)
    theirs = build_alibi_tensor(torch.ones(1, 9, dtype=torch.long), heads, torch.float32)
    close(torch.tensor(position.slopes), theirs[:, 0, 1], 1e-6)
    ours = position.bias(9, 9, CPU)[0]
    rows = (
        theirs - ours
        # theirs is of the key's place, ours of its distance: one number a row apart, which softmax
        # drops
    )
    below = torch.ones(9, 9, dtype=torch.bool).tril()
    close(torch.where(below, rows, 0), torch.where(below, rows[:, :, :1], 0), 1e-5)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 4096}
STRETCHED: list[tuple[dict[str, Any], dict[str, Any]]] = [  # ours, theirs
    ({"name": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    ({"name": "linear", "factor": 1.5}, {"rope_type": "linear", "factor": 1.5}),
    ({"name": "yarn"}, {"rope_type": "yarn"} | YARN),
    ({"name": "yarn", "factor": 1.0}, {"rope_type": "yarn"} | YARN | {"factor": 1.0}),
    (
        {"name": "yarn", "factor": 40.0, "fast": 16.0, "slow": 2.0, "original": 1024, "gain": 1.25},
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.25,
            "original_max_position_embeddings": 1024,
        },
    ),
    ({"name": "llama3"}, {"rope_type": "llama3"} | LLAMA3),
    (
        {"name": "llama3", "factor": 32.0, "low": 2.0, "high": 16.0, "original": 512},
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 2.0,
            "high_freq_factor": 16.0,
            "original_max_position_embeddings": 512,
        },
    ),
    ({"name": "ntk", "factor": 4.0}, {"rope_type": "dynamic", "factor": 1.0}),
    ({"name": "ntk", "factor": 16.0}, {"rope_type": "dynamic", "factor": 1.0}),
]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    STRETCHED,
    ids=lambda told: (
        f"{told.get('name', '')}{told['factor']}" if "factor" in told else told["name"]
    ),
)
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("width", [4, 64, 128])
def test_rope_is_stretched_as_there(
    ours: dict[str, Any], theirs: dict[str, Any], base: float, width: int
) -> None:
    """Their `dynamic` at factor 1 is NTK-aware scaling by how many times longer the sequence is."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    limit = theirs.get("original_max_position_embeddings", 2048)
    configured = LlamaConfig(
        hidden_size=2 * width,
        num_attention_heads=2,
        head_dim=width,
        max_position_embeddings=limit,
        rope_parameters=theirs | {"rope_theta": base},
    )
    length = int(limit * ours["factor"]) if ours["name"] == "ntk" else None
    speeds, gain = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](configured, CPU, seq_len=length)
    rope = registry.build(
        "pos", {"name": "rope", "base": base, "scaling": ours}, 2 * width, 2, width, 64, True
    )
    torch.testing.assert_close(
        rope.scaling(frequencies(width, base, CPU)), speeds, rtol=2e-6, atol=0
    )
    assert rope.gain == pytest.approx(gain, rel=1e-9)
