"""Components against what can be worked out by hand, in float64, or by torch's own reference
modules.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.helpers.components import (
    Choice,
    choices,
    close,
    each,
    made,
    make,
    option,
    said,
    shaken,
    tokens,
)
from zoo import registry
from zoo.components.pos import RoPE
from zoo.context import Context
from zoo.models.stack import Stack


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def context(length: int, causal: bool = True) -> Context:
    return Context(torch.arange(length)[None], causal, length)


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=seed + number) / 4)
    return module


def test_sinusoidal_far_away_in_bfloat16() -> None:
    """The same formula at 100,000, in float64: the angles are float32 whatever the module is
    cast to.
    """
    position = registry.build("pos", "sinusoidal", 4, 1, 4, 8, True).to(torch.bfloat16)
    added = position.embed(torch.zeros(1, 1, 4, dtype=torch.bfloat16), torch.tensor([[100_000]]))
    expected = [wave(100_000 / base) for base in (1, 100) for wave in (math.sin, math.cos)]
    close(added[0, 0].double(), torch.tensor(expected, dtype=torch.float64), 0.02)


def test_sinusoidal_position_one() -> None:
    """Vaswani et al. 2017, section 3.5, at d = 4 and position 1: sin 1, cos 1, sin .01, cos .01."""
    added = registry.build("pos", "sinusoidal", 4, 1, 4, 8, True).embed(
        torch.zeros(1, 2, 4), torch.tensor([[0, 1]])
    )
    close(added[0, 0], torch.tensor([0.0, 1.0, 0.0, 1.0]))
    close(added[0, 1], torch.tensor([0.8415, 0.5403, 0.0100, 0.99995]), 5e-5)


@pytest.mark.parametrize(
    ("pairing", "turned"),
    [("half", [0.5403, 0, 0.8415, 0]), ("interleaved", [0.5403, 0.8415, 0, 0])],
)
def test_rope_position_one(pairing: str, turned: list[float]) -> None:
    """Su et al. 2021, equation 15: the first pair turns by 1 radian, and which entries it is
    made of is the pairing.
    """
    rope: RoPE = registry.build("pos", {"name": "rope", "pairing": pairing}, 4, 1, 4, 8, True)
    close(
        rope.rotate(torch.tensor([[1]]))(torch.tensor([[[[1.0, 0, 0, 0]]]]))[0, 0, 0],
        torch.tensor(turned),
        5e-5,
    )


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 0.01), (torch.bfloat16, 0.03)])
def test_rope_is_a_complex_product(
    pairing: str, fraction: float, dtype: torch.dtype, tolerance: float
) -> None:
    """Su et al. 2021: each pair, as a complex number, times exp(i·position·base^(-2j/width)),
    here in complex128.
    """
    width, places, x = (
        int(8 * fraction),
        torch.tensor([[0, 17, 100_000]]),
        draw(1, 2, 3, 8).to(dtype),
    )
    choice = {"name": "rope", "pairing": pairing, "fraction": fraction, "base": 50.0}
    rope: RoPE = registry.build("pos", choice, 16, 2, 8, 8, True).to(dtype)
    part = x[..., :width].double()
    pairs = part.unflatten(-1, (2, -1)).mT if pairing == "half" else part.unflatten(-1, (-1, 2))
    angle = places[..., None] * 50.0 ** (-torch.arange(0, width, 2).double() / width)
    by = torch.polar(torch.ones_like(angle), angle)[:, None]
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * by)
    expected = (turned.mT if pairing == "half" else turned).flatten(-2)
    actual = rope.rotate(places)(x)
    close(
        actual[..., :width].double(), expected, tolerance
    )  # float32 knows an angle of 100,000 to .008
    close(
        actual[..., :2, :width].double(),
        expected[..., :2, :],
        1e-5 if dtype == torch.float32 else tolerance,
    )
    assert torch.equal(actual[..., width:], x[..., width:])


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rope_scores_depend_on_the_distance_only(pairing: str) -> None:
    rope: RoPE = registry.build("pos", {"name": "rope", "pairing": pairing}, 16, 1, 16, 8, True)
    q, k = draw(1, 1, 1, 16), draw(1, 1, 1, 16, seed=1)

    def score(query: int, key: int) -> Tensor:
        return (
            rope.rotate(torch.tensor([[query]]))(q) * rope.rotate(torch.tensor([[key]]))(k)
        ).sum()

    close(score(7, 2), score(107, 102), 1e-4)
    assert not torch.isclose(score(7, 2), score(7, 3))
    assert not torch.isclose(score(7, 2), score(2, 7))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gelu", -0.0040497),
        ("gelu_tanh", -0.0036374),
        ("relu", 0.0),
        ("silu", -3 / (1 + math.exp(3))),
    ],
)
def test_activation_at_minus_three(name: str, value: float) -> None:
    """Hendrycks & Gimpel 2016: x·Φ(x), and its tanh approximation, which differ in the fourth
    place at -3.
    """
    ffn = registry.build("ffn", {"name": name, "hidden": 1}, 1)
    with torch.no_grad():
        ffn.up.weight.fill_(1.0)
        ffn.out.weight.fill_(1.0)
    assert ffn(torch.tensor([[-3.0]]), context(1)).item() == pytest.approx(value, abs=5e-8)
    assert ffn(torch.tensor([[3.0]]), context(1)).item() == pytest.approx(
        3 + value, abs=5e-7
    )  # act(x) - act(-x) = x


@pytest.mark.parametrize(
    ("name", "act"), [("reglu", F.relu), ("geglu", F.gelu), ("swiglu", F.silu)]
)
def test_gated_ffn(name: str, act: Any) -> None:
    """Shazeer 2020, equation 6: (act(x·W) ⊗ x·V)·W₂."""
    ffn = filled(registry.build("ffn", name, 12))
    x, (gate, up, out) = draw(2, 3, 12), (weight.double() for weight in ffn.parameters())
    close(ffn(x, context(3)).double(), (act(x.double() @ gate.T) * (x.double() @ up.T)) @ out.T)


def test_gated_and_ungated_ffn_are_of_one_size() -> None:
    """Shazeer 2020, section 3: two thirds of the width, so that three matrices weigh as much as
    two: 8·768².
    """
    with torch.device("meta"):
        sizes = {
            name: registry.build("ffn", name, 768)
            for name in ("relu", "gelu", "swiglu", "geglu", "reglu")
        }
    assert sizes["swiglu"].up.weight.shape == (2048, 768)
    assert {sum(weight.numel() for weight in ffn.parameters()) for ffn in sizes.values()} == {
        4_718_592
    }
    assert registry.build("ffn", {"name": "swiglu", "multiple_of": 256}, 64).up.weight.shape == (
        256,
        64,
    )


def test_layer_norm_by_hand() -> None:
    """Ba et al. 2016, with the biased variance, in float64."""
    norm = filled(registry.build("norm", {"name": "layer", "eps": 0.1}, 16))
    x, (gain, bias) = (
        draw(3, 16).double() * 3 + 1,
        (parameter.double() for parameter in norm.parameters()),
    )
    centred = x - x.sum(-1, keepdim=True) / 16
    close(
        norm(x.float()).double(),
        centred / (centred.square().sum(-1, keepdim=True) / 16 + 0.1).sqrt() * gain + bias,
    )


def test_rms_norm_by_hand() -> None:
    """Zhang & Sennrich 2019, equation 4: no centring, in float64."""
    norm = filled(registry.build("norm", {"name": "rms", "eps": 0.1}, 16))
    x, (gain,) = (
        draw(3, 16).double() * 3 + 1,
        (parameter.double() for parameter in norm.parameters()),
    )
    close(norm(x.float()).double(), x / (x.square().sum(-1, keepdim=True) / 16 + 0.1).sqrt() * gain)


def test_scores_without_scale_have_the_variance_of_the_head_width() -> None:
    """Vaswani et al. 2017, footnote 4: the product of two vectors of d_k unit-variance entries
    has variance d_k.
    """
    width, length = 64, 256
    attn = registry.build("attn", {"name": "mha", "scale": 1.0}, width, 1, True)
    assert registry.build("attn", "mha", width, 1, True).scale == width**-0.5
    with torch.no_grad():
        for rows, number in zip(attn.qkv.weight.split(width), (1, 2, 3), strict=True):
            rows.copy_(torch.linalg.qr(draw(width, width, seed=number))[0])  # keeps unit variance
    q, k, _ = attn.qkv(draw(length, width, seed=3)).split(width, -1)
    scores = q @ k.T * attn.scale
    assert scores.var().item() == pytest.approx(width, rel=0.05)


@pytest.mark.parametrize("attn", choices("attn"), ids=said)
def test_the_scale_is_of_the_scores(attn: Choice) -> None:
    """A vanishing scale makes every score equal, so that each token is the mean of the values it
    sees.
    """
    if not option("attn", attn["name"], "scale") or attn.get("sinks"):
        pytest.skip("has no scores, or a sink that takes a share")
    flat = filled(registry.build("attn", attn | {"scale": 1e-9}, 16, 4, True))
    x = draw(1, 6, 16)
    alone = torch.cat(
        [flat(x[:, t : t + 1], context(1)) for t in range(6)], 1
    )  # a token by itself is its own value
    close(flat(x, context(6)), alone.cumsum(1) / torch.arange(1, 7)[:, None])


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_that_of_torch(backend: str, causal: bool) -> None:
    ours = filled(
        registry.build("attn", {"name": "mha", "bias": True, "backend": backend}, 16, 4, True)
    )
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.in_proj_bias.copy_(ours.qkv.bias)
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    x = draw(2, 7, 16)
    mask = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    close(ours(x, context(7, causal)), theirs(x, x, x, attn_mask=mask, need_weights=False)[0])


@pytest.mark.parametrize("residual", ["pre", "post"])
@pytest.mark.parametrize("ffn", ["relu", "gelu"])
def test_a_block_is_that_of_torch(residual: str, ffn: str) -> None:
    """nn.TransformerEncoderLayer, which is both the layer of 2017 and that of GPT-2."""
    parts = {
        "attn": {"name": "mha", "bias": True},
        "ffn": {"name": ffn, "bias": True},
        "pos": {"name": "none"},
    }
    model = shaken(make(arch={"layers": 1}, residual={"name": residual}, **parts))
    block: Any = model.stack.blocks[0]
    attn, mlp = block.attn.sublayer, block.ffn.sublayer
    theirs = nn.TransformerEncoderLayer(
        16, 4, 64, 0.0, ffn, batch_first=True, norm_first=residual == "pre"
    )
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(attn.qkv.weight)
        theirs.self_attn.in_proj_bias.copy_(attn.qkv.bias)
    for to, source in (
        (theirs.self_attn.out_proj, attn.out),
        (theirs.linear1, mlp.up),
        (theirs.linear2, mlp.out),
        (theirs.norm1, block.attn.norm),
        (theirs.norm2, block.ffn.norm),
    ):
        to.load_state_dict(source.state_dict())
    hidden = theirs(
        model.embed(tokens()), nn.Transformer.generate_square_subsequent_mask(12), is_causal=True
    )
    if residual == "pre":
        hidden = model.stack.norm(hidden)
    close(model(tokens()), hidden @ model.embed.weight.T)


@each("attn")
def test_without_position_and_mask_order_means_nothing(attn: Choice) -> None:
    if not option("attn", attn["name"], "scale"):
        pytest.skip("reads its tokens in order")
    parts = {"norm": "layer", "residual": "pre", "block": "serial", "ffn": "gelu", "attn": attn}
    x, order = draw(1, 8, 16), torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])
    for pos in choices("pos"):
        stack: Any = filled(Stack(parts | {"pos": pos}, 16, 2, 4, 16, 0.0, causal=False))
        same = torch.allclose(stack(x[:, order]), stack(x)[:, order], atol=1e-5)
        assert same == (pos["name"] == "none"), pos


@each("attn")
@pytest.mark.parametrize("window", [1, 3, 8, 20])
def test_a_window_is_so_many_tokens(attn: Choice, window: int) -> None:
    if not option("attn", attn["name"], "window"):
        pytest.skip("has no window")
    model = made(("attn", attn | {"window": window}), arch={"layers": 1})
    x = model.embed(tokens(1)).detach().requires_grad_()
    y = model.stack(x)
    for t in range(12):
        (gradient,) = torch.autograd.grad(y[:, t].square().sum(), x, retain_graph=True)
        assert gradient.abs().amax((0, 2)).nonzero().flatten().tolist() == list(
            range(max(0, t - window + 1), t + 1)
        )
