"""Encoders, decoders, both together, and what only some families use, against published numbers
and other implementations.
"""

from __future__ import annotations

import importlib
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.components import (
    ARCH,
    Choice,
    base,
    choices,
    close,
    each,
    gradients,
    made_or_skipped,
    make,
    said,
    shaken,
    tokens,
)
from zoo import models, registry
from zoo.components.residual import DeepNorm
from zoo.context import Cache, Context
from zoo.errors import ZooError
from zoo.nn.attention import in_heads

LENGTH = 12
LEFT = torch.tensor([[True] * LENGTH, [False] * 5 + [True] * 7])
RIGHT = LEFT.flip(1)
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 7 + [2], [3] * LENGTH])
BOTH = {"name": "encoder_decoder"}
SIDES = pytest.mark.parametrize("mask", [LEFT, RIGHT], ids=["left", "right"])
MIXERS = pytest.mark.parametrize(
    ("attn", "pos"), [("mha", "rope"), ("gqa", "t5"), ("mla", "alibi"), ("lstm", "learned")]
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def context(**given: Any) -> Context:
    return Context(torch.arange(LENGTH)[None], True, LENGTH, **given)


def filled(module: Any) -> Any:
    """With draws for values, in float64."""
    module.double().requires_grad_(False)
    for number, parameter in enumerate(module.parameters()):
        parameter.copy_(draw(*parameter.shape, seed=number).double())
    return module


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("masked", [False, True])
def test_sinks_are_those_of_gpt_oss(backend: str, masked: bool) -> None:
    pytest.importorskip("transformers")
    theirs = importlib.import_module(
        "transformers.models.gpt_oss.modeling_gpt_oss"
    ).eager_attention_forward
    attn = filled(
        registry.build("attn", {"name": "gqa", "sinks": True, "backend": backend}, 16, 4, True)
    )
    x, here = draw(2, LENGTH, 16, seed=9).double(), context(padding=RIGHT if masked else None)
    q, k, v = (in_heads(y, 4) for y in attn.qkv.each(x))
    module = SimpleNamespace(num_key_value_groups=2, sinks=attn.sinks, training=False)
    mask = torch.full((LENGTH, LENGTH), -torch.inf).double().triu(1)
    mask = mask.masked_fill(~RIGHT[:, None, None, :], -torch.inf) if masked else mask
    close(attn(x, here), attn.out(theirs(module, q, k, v, mask, attn.scale)[0].flatten(2)), 1e-12)


def test_softcap_is_that_of_gemma_2() -> None:
    pytest.importorskip("transformers")
    theirs = importlib.import_module(
        "transformers.models.gemma2.modeling_gemma2"
    ).eager_attention_forward
    attn = filled(
        registry.build("attn", {"name": "gqa", "softcap": 3.0, "backend": "eager"}, 16, 4, True)
    )
    x = draw(2, LENGTH, 16, seed=9).double()
    q, k, v = (in_heads(y, 4) for y in attn.qkv.each(x))
    module = SimpleNamespace(num_key_value_groups=2, training=False)
    mask = torch.full((LENGTH, LENGTH), -torch.inf).double().triu(1)
    expected = attn.out(
        theirs(module, q, k, v, mask, scaling=attn.scale, softcap=3.0)[0].flatten(2)
    )
    close(attn(x, context()), expected)  # they round the weights to float32
    assert (q @ k.repeat_interleave(2, 1).mT * attn.scale).abs().max() > 6, (
        "scores large enough to be capped"
    )


SEEN: dict[str, dict[str, Any]] = {
    "causal": {},
    "left": {"padding": LEFT},
    "right": {"padding": RIGHT},
    "documents": {"documents": DOCUMENTS},
    "bias": {"bias": draw(1, 4, LENGTH, LENGTH)},
    "biased_and_padded": {"bias": draw(1, 4, LENGTH, LENGTH), "padding": LEFT},
}


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize(
    "options", [{}, {"window": 3}, {"softcap": 1.0}, {"sinks": True}], ids=said
)
@pytest.mark.parametrize("causal", [True, False])
def test_flex_is_eager(seen: str, options: Choice, causal: bool) -> None:
    one, other = (
        filled(
            registry.build("attn", {"name": "gqa", "backend": backend, **options}, 16, 4, causal)
        ).float()
        for backend in ("eager", "flex")
    )
    x, here = draw(2, LENGTH, 16, seed=9), context(**SEEN[seen])
    here.causal = causal
    with torch.no_grad():
        close(other(x, here), one(x, here))


def test_flex_has_no_gradient_on_a_processor() -> None:
    model = make(attn={"name": "mha", "backend": "flex"})
    with pytest.raises(ZooError, match="backend=flex has no gradient"):
        model(tokens())


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_cross_attention_is_that_of_torch(backend: str) -> None:
    ours = filled(registry.build("cross", {"name": "mha", "bias": True, "backend": backend}, 16, 4))
    theirs = nn.MultiheadAttention(16, 4, batch_first=True, dtype=torch.float64).requires_grad_(
        False
    )
    theirs.in_proj_weight.copy_(torch.cat([ours.q.weight, ours.kv.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.q.bias, ours.kv.bias]))
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    x, memory = draw(2, 5, 16).double(), draw(2, LENGTH, 16, seed=1).double()
    expected = theirs(x, memory, memory, key_padding_mask=~LEFT, need_weights=False)[0]
    close(ours(x, context(memory=memory, memory_padding=LEFT)), expected, 1e-12)


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"name": "gqa", "kv_heads": 3}, "arch.cross.kv_heads"),
        ({"name": "gqa", "kv_heads": 0}, "arch.cross.kv_heads"),
        ({"name": "mha", "head_dim": 0}, "arch.cross.head_dim"),
        ({"name": "mha", "scale": -1}, "arch.cross.scale"),
        ({"name": "mha", "dropout": 1}, "arch.cross.dropout"),
        ({"name": "mha", "dropout": 0.1, "backend": "flex"}, "arch.cross.backend=flex"),
    ],
    ids=said,
)
def test_a_cross_attention_that_cannot_be_is_refused_by_its_own_name(
    chosen: Choice, told: str
) -> None:
    with pytest.raises(ZooError, match=told) as refused:
        make(arch=BOTH | {"cross": chosen})
    assert "attn." not in str(refused.value)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"attn": {"name": "mha"}}, "attn.head_dim"),
        ({"attn": {"name": "mla"}}, "attn.nope_dim"),
        ({"attn": {"name": "mla", "nope_dim": 4}}, "attn.value_dim"),
        ({"attn": {"name": "mha", "head_dim": 4}, "arch": BOTH}, "arch.cross.head_dim"),
    ],
    ids=said,
)
def test_heads_that_do_not_divide_are_told_of_the_option_that_helps(
    parts: dict[str, Choice], told: str
) -> None:
    with pytest.raises(ZooError, match=f"or give {told}"):
        make(**parts | {"arch": parts.get("arch", {}) | {"heads": 5}})


@each("cross")
def test_a_memory_of_padding_only_gives_zeros(cross: Choice) -> None:
    attention, memory = registry.build("cross", cross, 16, 4), draw(2, LENGTH, 16).requires_grad_()
    padding = torch.tensor([[True] * LENGTH, [False] * LENGTH])
    y = attention(draw(2, 5, 16), context(memory=memory, memory_padding=padding))
    assert (y[1] == 0).all()
    assert (y[0] != 0).all()
    (gradient,) = torch.autograd.grad(y.square().sum(), memory)
    assert gradient.isfinite().all()
    assert (gradient[1] == 0).all()


def family(name: str, attn: str, pos: str, **more: Any) -> Any:
    return shaken(make(arch={"name": name, **more}, attn={"name": attn}, pos={"name": pos}))


@MIXERS
@pytest.mark.parametrize("cross", ["mha", "gqa", "mqa"])
@torch.no_grad()
def test_decoding_with_a_cache_is_decoding_without(attn: str, pos: str, cross: str) -> None:
    """Both sequences padded on the left; the memory's keys are made once."""
    model = family("encoder_decoder", attn, pos, cross=cross)
    after, mask = tokens(seed=1), LEFT.roll(1, 0)
    whole = model.hidden(tokens(), after, LEFT, decoder_padding_mask=mask)
    memory, cache, parts = model.encode(tokens(), LEFT), Cache(LENGTH), []
    for start, end in ((0, 6), (6, 7), (7, LENGTH)):
        parts.append(
            model.decode(after[:, start:end], memory, LEFT, padding=mask[:, start:end], cache=cache)
        )
        memory = torch.zeros_like(memory)  # which is not read again
    close(torch.cat(parts, 1)[mask], whole[mask])
    assert len(cache.fixed) == ARCH["layers"]


@MIXERS
@SIDES
@torch.no_grad()
def test_padding_changes_neither_memory_nor_logits(attn: str, pos: str, mask: Tensor) -> None:
    model = family("encoder_decoder", attn, pos)
    memory, logits = model.encode(tokens(), mask), model(tokens(), tokens(seed=1), mask)
    for row in range(2):
        alone = tokens()[row][mask[row]][None]
        close(memory[row][mask[row]], model.encode(alone)[0])
        close(logits[row], model(alone, tokens(seed=1)[row : row + 1])[0])


@pytest.mark.parametrize("attn", choices("attn"), ids=said)
@pytest.mark.parametrize("pos", choices("pos"), ids=said)
@torch.no_grad()
def test_padding_changes_no_token_of_an_encoder(attn: Choice, pos: Choice) -> None:
    model = made_or_skipped(arch={"name": "encoder"}, attn=attn, pos=pos)
    for mask in (LEFT, RIGHT):
        padded = model(tokens(), mask)
        for row in range(2):
            close(padded[row][mask[row]], model(tokens()[row][mask[row]][None])[0])


def reach(hidden: Tensor, x: Tensor) -> Tensor:
    """Which tokens of x (1, K, dim) those of hidden (1, Q, dim) depend on: (Q, K)."""
    rows = [
        torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0].abs().amax((0, 2)) > 0
        for y in hidden[0]
    ]
    return torch.stack(rows)


@MIXERS
def test_a_decoder_is_causal_and_an_encoder_is_not(attn: str, pos: str) -> None:
    model = family("encoder_decoder", attn, pos)
    x, memory = (model.embed(tokens(1, 6, seed)).detach().requires_grad_() for seed in (0, 1))
    assert reach(model.encoder(memory), memory).all()
    hidden = model.decoder(x, memory=model.encoder(memory))
    assert torch.equal(reach(hidden, x), torch.ones(6, 6, dtype=torch.bool).tril())
    assert reach(hidden, memory).all()
    encoder = family("encoder", attn, pos)
    assert reach(encoder.stack(x), x).all()


@MIXERS
def test_every_parameter_of_both_stacks_learns(attn: str, pos: str) -> None:
    """Also where blocks are recomputed, and then the same."""
    model, found = family("encoder_decoder", attn, pos), []
    for checkpointing in (False, True):
        for stack in model.stacks:
            stack.checkpointing = checkpointing
        loss = nn.functional.cross_entropy(
            model(tokens(), tokens(seed=1)).flatten(0, 1), tokens(seed=2).flatten()
        )
        found.append(gradients(model, loss))
    for name, gradient in found[0].items():
        assert gradient.abs().max() > 1e-7, name
        close(found[1][name], gradient, 1e-6)


def constants(stack: Any) -> tuple[float, float]:
    """α and β of a stack, which all its residuals share."""
    found = {
        (module.alpha, module.gain) for module in stack.modules() if isinstance(module, DeepNorm)
    }
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize(("n", "m"), [(1, 1), (6, 6), (18, 18), (3, 12), (12, 2)])
def test_the_constants_of_deepnorm(n: int, m: int) -> None:
    """Wang et al. 2022, figure 2, for N layers of an encoder and M of a decoder."""
    alone = {
        name: constants(
            make(device="meta", arch={"name": name, "layers": m}, residual="deepnorm").stack
        )
        for name in ("decoder", "encoder")
    }
    for alpha, beta in alone.values():
        assert alpha == pytest.approx((2 * m) ** (1 / 4))
        assert beta == pytest.approx((8 * m) ** (-1 / 4))
    both: Any = make(
        device="meta", arch=BOTH | {"layers": n, "decoder_layers": m}, residual="deepnorm"
    )
    alpha, beta = constants(both.encoder)
    assert alpha == pytest.approx(0.81 * (n**4 * m) ** (1 / 16))
    assert beta == pytest.approx(0.87 * (n**4 * m) ** (-1 / 16))
    alpha, beta = constants(both.decoder)
    assert alpha == pytest.approx((3 * m) ** (1 / 4))
    assert beta == pytest.approx((12 * m) ** (-1 / 4))


WIDE = BOTH | {"dim": 64, "vocab": 128, "layers": 1}


def started(init: str, **parts: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(arch=WIDE, init=init, pos={"name": "t5"}, **parts)


def deviations(model: Any) -> dict[str, float]:
    """Of every matrix, those of a joined product apart, by the last words of its name."""
    found = {}
    for path, module in model.named_modules():
        matrix, rows = getattr(module, "weight", None), getattr(module, "split_sizes", None)
        if isinstance(matrix, Tensor) and matrix.ndim == 2:
            words = [
                word
                for word in path.split(".")
                if word in ("encoder", "decoder", "attn", "cross", "ffn", "positions")
            ]
            names = list(rows) if rows else [path.split(".")[-1]]
            for name, piece in zip(
                names, matrix.split(list(rows.values())) if rows else [matrix], strict=True
            ):
                found[".".join([*words, name])] = piece.std().item()
    return found


def check(model: Any, expected: dict[str, float]) -> None:
    """Ends of names, the first that fits; every matrix has one."""
    for name, actual in deviations(model).items():
        wanted = next(std for end, std in expected.items() if name.endswith(end))
        assert actual == pytest.approx(wanted, rel=0.3 if "positions" in name else 0.08), name


def test_bert_starts_every_matrix_at_one_deviation() -> None:
    """Devlin et al. 2018: .02."""
    check(started("bert"), {"": 0.02})


def test_t5_starts_each_matrix_by_its_fan_in() -> None:
    """As transformers' T5PreTrainedModel: queries smaller by √width, embeddings 1, the table of
    positions 1/√dim.
    """
    check(
        started("t5"),
        {
            "embed": 1.0,
            "positions.0": 64**-0.5,
            ".q": (64 * 16) ** -0.5,
            "ffn.out": 256**-0.5,
            "": 64**-0.5,
        },
    )


def test_deepnorm_starts_values_and_feed_forward_smaller() -> None:
    """Wang et al. 2022, figure 2: Xavier-normal, with gain β but for queries and keys."""
    xavier, wide = (2 / (64 + 64)) ** 0.5, (2 / (64 + 256)) ** 0.5
    encoder, decoder = 0.87, 12 ** (-1 / 4)
    check(
        started("deepnorm", residual="deepnorm"),
        {
            "embed": 64**-0.5,
            "positions.0": (2 / (4 + 32)) ** 0.5,
            ".q": xavier,
            ".k": xavier,
            "encoder.ffn.up": encoder * wide,
            "encoder.ffn.out": encoder * wide,
            "encoder.attn.v": encoder * xavier,
            "encoder.attn.out": encoder * xavier,
            "decoder.ffn.up": decoder * wide,
            "decoder.ffn.out": decoder * wide,
            "": decoder * xavier,
        },
    )


@pytest.mark.parametrize("arch", ["decoder", "encoder_decoder"])
@pytest.mark.parametrize(
    ("init", "scale", "warned"),
    [
        ("t5", None, True),
        ("fan_in", 1.0, True),
        ("gpt2", 1.0, True),
        ("t5", 1.0, False),
        ("fan_in", None, False),
        ("fan_in", 0.3, False),
    ],
)
def test_an_init_not_made_for_the_scale_is_told_of(
    arch: str, init: str, scale: float | None, warned: bool
) -> None:
    cross = {"cross": {"name": "mha", "scale": scale}} if arch == "encoder_decoder" else {}
    parts = base(attn={"name": "mha", "scale": scale}, init=init)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        models.build({"arch": ARCH | {"name": arch} | cross} | parts)
    said = [str(warning.message) for warning in told if ".scale=" in str(warning.message)]
    assert len(said) == warned
    assert all(
        ("init=t5" in sentence) == (init != "t5") for sentence in said
    )  # none advises what it has
