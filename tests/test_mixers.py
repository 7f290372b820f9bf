"""What stands in attention's slot and is not plain attention: latent attention and recurrence,
against their judges.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.components import (
    Choice,
    choices,
    chosen,
    close,
    gradients,
    loss_of,
    make,
    option,
    said,
    shaken,
    tokens,
)
from zoo import config, cost, registry
from zoo.context import Cache, Context
from zoo.errors import ZooError
from zoo.launch.preflight import refuse_meaningless
from zoo.launch.run_spec import RunSpec
from zoo.nn.mixer import HONOURED, Mixer

LENGTH = 12
LATENT = {"name": "mla", "kv_rank": 12, "nope_dim": 6, "rope_dim": 4, "value_dim": 5, "bias": True}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize("q_rank", [None, 8])
def test_latent_attention_is_that_of_transformers(version: str, q_rank: int | None) -> None:
    pytest.importorskip("transformers")
    theirs_of = importlib.import_module(
        f"transformers.models.deepseek_{version}.modeling_deepseek_{version}"
    )
    configured = getattr(
        importlib.import_module("transformers"), f"Deepseek{version.upper()}Config"
    )(
        hidden_size=16,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=q_rank,
        kv_lora_rank=12,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        attention_bias=True,
        attn_implementation="eager",
        head_dim=4,
    )
    theirs = getattr(theirs_of, f"Deepseek{version.upper()}Attention")(
        configured, 0
    ).requires_grad_(False)
    rotary = getattr(theirs_of, f"Deepseek{version.upper()}RotaryEmbedding")(configured)
    norm = {"name": "rms", "eps": theirs.kv_a_layernorm.variance_epsilon}
    ours = registry.build(
        "attn", LATENT | {"q_rank": q_rank, "norm": norm}, 16, 4, True
    ).requires_grad_(False)
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
    ours.up.load_state_dict(theirs.kv_b_proj.state_dict())
    ours.kv_norm.load_state_dict(theirs.kv_a_layernorm.state_dict())
    ours.out.load_state_dict(theirs.o_proj.state_dict())

    x, places = draw(2, 9, 16, seed=99), torch.arange(9)[None]
    rope = registry.build(
        "pos", {"name": "rope", "pairing": "interleaved"}, 16, 4, ours.rotary_dim, 16, True
    )
    actual = ours(x, Context(places, True, 9, rotate=rope.rotate(places)))
    mask = torch.full((9, 9), -torch.inf).triu(1)[None, None]
    close(actual, theirs(x, position_embeddings=rotary(x, places), attention_mask=mask)[0])


def test_the_cache_holds_the_latent_and_the_turned_key_only() -> None:
    """DeepSeek-V2 2024, table 1: (kv_rank + rope_dim) entries a token and layer, where attention
    keeps 2·heads·width.
    """
    words = [
        "attn=mla",
        "pos=rope",
        "arch.dim=16",
        "arch.layers=3",
        "arch.heads=4",
        "attn.kv_rank=12",
        "attn.rope_dim=6",
    ]
    told = cost.of(config.compose(words))
    assert told["kv_cache_bytes_per_token"] == 3 * (12 + 6) * 4
    model, cache = make(attn=LATENT), Cache(LENGTH)
    model(tokens(1), cache=cache)
    assert cache.nbytes == LENGTH * 2 * (12 + 4) * 4


def test_a_query_may_have_a_latent_too() -> None:
    model = shaken(make(attn=LATENT | {"q_rank": 8}))
    with torch.no_grad():
        cache = Cache(LENGTH)
        parts = [
            model(tokens()[:, at], cache=cache)
            for at in (slice(0, 5), slice(5, 6), slice(6, LENGTH))
        ]
        close(torch.cat(parts, 1), model(tokens()))
    for name, gradient in gradients(model, loss_of(model)).items():
        assert gradient.abs().max() > 1e-7, name


@pytest.mark.parametrize("word", ["kv_rank", "q_rank", "nope_dim", "rope_dim", "value_dim"])
def test_a_latent_without_width_is_refused_by_name(word: str) -> None:
    with pytest.raises(ZooError, match=f"attn.{word} must be at least 1"):
        make(attn={"name": "mla", word: 0})


def test_latent_attention_starts_each_projection_under_its_own_name() -> None:
    """Other ranks leave the queries as they were."""
    one, other = (
        dict(make(attn={"name": "mla", "kv_rank": rank}).named_parameters()) for rank in (16, 8)
    )
    down = "stack.blocks.0.attn.sublayer.down.weight"
    assert torch.equal(one[down][:24], other[down][:24])


RECURRENT = ["lstm", "rnn"]
NAPS = torch.tensor(
    [[False] * 3 + [True] * 9, [True] * 7 + [False] * 5, [True, False] * 6, [False] * 12]
)  # where tokens are


def recurrent(name: str, causal: bool = True, **options: Any) -> Any:
    """One that is filled with draws, in float64."""
    mixer = (
        registry.build("attn", {"name": name, **options}, 6, 2, causal)
        .double()
        .requires_grad_(False)
    )
    for number, parameter in enumerate(mixer.parameters()):
        parameter.copy_(draw(*parameter.shape, seed=number).double() / 2)
    return mixer


def by_hand(cell: Any, x: Tensor, side: str = "") -> Tensor:
    """The equations, one token after the other: x (Q, dim) -> (Q, units)."""
    w, u, b, d = (
        getattr(cell, f"{kind}_l0{side}", 0)
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    h = c = x.new_zeros(cell.hidden_size)
    seen = []
    for token in x.flip(0) if side else x:
        gates = w @ token + b + u @ h + d
        if cell.mode == "LSTM":
            i, f, g, o = gates.chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        else:
            h = gates.tanh()
        seen.append(h)
    return torch.stack(seen[::-1] if side else seen)


def expected(mixer: Any, x: Tensor) -> Tensor:
    sides = [by_hand(mixer.cell, x, side) for side in ("", "_reverse")[: mixer.sides]]
    return mixer.out(torch.cat(sides, -1))


def given(
    mask: Tensor | None = None, documents: Tensor | None = None, keys: int = LENGTH, **more: Any
) -> Context:
    return Context(torch.arange(LENGTH)[None], True, keys, mask, documents, **more)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrence_is_its_equations(name: str, bias: bool, causal: bool) -> None:
    """Hochreiter & Schmidhuber 1997 with the forget gate of Gers 2000; Elman 1990."""
    mixer, x = recurrent(name, causal, bias=bias, hidden=5), draw(2, LENGTH, 6).double()
    y = mixer(x, given())
    for row in range(2):
        close(y[row], expected(mixer, x[row]), 1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrence_reads_no_padding(name: str, causal: bool) -> None:
    """Wherever the padding is, also between tokens, and in a row of padding only."""
    mixer, x = recurrent(name, causal), draw(4, LENGTH, 6).double()
    y, nothing = mixer(x, given(NAPS)), mixer.out.bias
    for row in range(3):
        close(y[row][NAPS[row]], expected(mixer, x[row][NAPS[row]]), 1e-12)
    close(y[~NAPS], nothing.expand(int((~NAPS).sum()), -1), 1e-12)
    close(mixer(x[3:], given(NAPS[3:]))[0], nothing.expand(LENGTH, -1), 1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrence_starts_afresh_in_each_document(name: str, causal: bool) -> None:
    mixer, x = recurrent(name, causal), draw(4, LENGTH, 6).double()
    documents = torch.tensor([[7] * 5 + [2] * 4 + [3] * 3, [2] * 12, [0] * 6 + [1] * 6, [0] * 12])
    y = mixer(x, given(NAPS, documents))
    for row in range(4):
        for document in documents[row].unique():
            one = NAPS[row] & (documents[row] == document)
            if one.any():
                close(y[row][one], expected(mixer, x[row][one]), 1e-12)


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("sizes", [[12], [1] * 12, [4, 1, 7], [8, 4]])
def test_a_recurrent_state_outlives_padding(name: str, sizes: list[int]) -> None:
    """Chunks behind a cache, some of them without a token of some row, or of any."""
    mixer, x, cache, parts = recurrent(name), draw(4, LENGTH, 6).double(), Cache(LENGTH), []
    with torch.no_grad():
        for size in sizes:
            end = cache.length + size
            places = torch.arange(cache.length, end)[None]
            parts.append(
                mixer(
                    x[:, cache.length : end], Context(places, True, end, NAPS[:, :end], cache=cache)
                )
            )
            cache.advance(size, NAPS[:, :end])
    close(torch.cat(parts, 1), mixer(x, given(NAPS)), 1e-12)
    assert cache.nbytes == mixer.cache_bytes(LENGTH, itemsize=8) * len(x)


@pytest.mark.parametrize("name", RECURRENT)
def test_the_gradient_of_padding_is_nothing(name: str) -> None:
    mixer, x = recurrent(name).requires_grad_(), draw(4, LENGTH, 6).double().requires_grad_()
    (gradient,) = torch.autograd.grad(mixer(x, given(NAPS)).square().sum(), x)
    assert (gradient[~NAPS] == 0).all()
    assert (gradient[NAPS].abs().amax(-1) > 0).all()


@pytest.mark.parametrize("name", RECURRENT)
def test_a_cache_of_recurrence_survives_autocast(name: str) -> None:
    model = shaken(make(attn={"name": name}))
    mask = torch.tensor([[True] * LENGTH, [False] * 5 + [True] * 7])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cache, parts = Cache(LENGTH), []
        for start, end in ((0, 4), (4, 7), (7, LENGTH)):
            parts.append(model(tokens()[:, start:end], mask[:, start:end], cache=cache))
        close(torch.cat(parts, 1)[mask], model(tokens(), mask)[mask], 0.1)


@pytest.mark.parametrize("first", [{"attn": "lstm", "pos": "none"}, {"attn": "lstm"}])
@pytest.mark.parametrize("pos", ["rope", "alibi", "t5", "learned"])
def test_recurrence_and_attention_in_turn(pos: str, first: dict[str, Any]) -> None:
    """A position is that of the layers which have scores; those which have none may name it or
    not.
    """
    turned, plain = (shaken(make(pos=at, arch={"pattern": [first, {}]})) for at in (pos, "none"))
    plain.load_state_dict(turned.state_dict(), strict=False)
    assert not torch.allclose(turned(tokens()), plain(tokens()))
    with pytest.raises(ZooError, match=r"attn=lstm .*pos=none"):
        make(pos="rope", arch={"pattern": [{"attn": "lstm"}]})


@pytest.mark.parametrize(("name", "numbers"), [("lstm", 2), ("rnn", 1)])
def test_a_recurrent_state_is_counted_for_a_sequence(name: str, numbers: int) -> None:
    """An LSTM keeps h and c, an Elman network h, of one size at any length."""
    words = [f"attn={name}", "pos=none", "arch.dim=16", "arch.layers=3", "attn.hidden=24"]
    for length in (8, 64):
        told = cost.of(config.compose([*words, f"arch.length={length}"]))
        assert told["kv_cache_bytes"] == told["kv_cache_bytes_per_sequence"] == 3 * numbers * 24 * 4
        assert told["kv_cache_bytes_per_token"] == 0


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_cell_starts_as_the_policy_says(name: str) -> None:
    cell: Any = (
        make(attn={"name": name, "hidden": 64}, arch={"dim": 64}).stack.blocks[0].attn.sublayer.cell
    )
    for word, value in cell.named_parameters():
        if word.startswith("bias"):
            assert (value == 0).all()
        else:
            assert value.std().item() == pytest.approx(64**-0.5, rel=0.06), word


KEEPING = {
    "kv_heads": 1,
    "window": 3,
    "hidden": 24,
    "kv_rank": 8,
    "rope_dim": 2,
    "value_dim": 6,
    "head_dim": 6,
}


def keeping(group: str) -> list[Choice]:
    """Every component of a group with each of its options that could change what it keeps in a
    cache.
    """
    found = choices(group)
    for name in registry.entries(group):
        found += [
            chosen(group, name) | {word: value}
            for word, value in KEEPING.items()
            if option(group, name, word)
        ]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attn", keeping("attn"), ids=said)
def test_a_cache_holds_what_its_mixers_say(attn: Choice, dtype: torch.dtype) -> None:
    model = make(attn=attn).to(dtype)
    for length in (5, LENGTH):
        cache = Cache(length)
        with torch.no_grad():
            for size in (4, *[1] * (length - 4)):
                model(tokens(1)[:, cache.length : cache.length + size], cache=cache)
        assert cache.nbytes == cost.cache_bytes(model, length, dtype.itemsize) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cross", keeping("cross"), ids=said)
def test_a_cache_behind_an_encoder_holds_what_its_mixers_say(
    cross: Choice, dtype: torch.dtype
) -> None:
    """Its own keys and values, and those of a memory of as many tokens, which are made once."""
    model: Any = make(arch={"name": "encoder_decoder", "cross": cross}).to(dtype)
    cache = Cache(6)
    with torch.no_grad():
        memory = model.encode(tokens(1, 6))
        for place in range(6):
            model.decode(tokens(1)[:, place : place + 1], memory, cache=cache)
    assert cache.nbytes == cost.cache_bytes(model, 6, dtype.itemsize)


CHANGES: dict[str, dict[str, Any]] = {  # in a context, that a mixer which honours them cannot miss
    "rotate": {"rotate": lambda x: x * torch.arange(1.0, 7)[:, None]},
    "bias": {"bias": draw(1, 4, 6, 6)},
    "padding": {"padding": torch.arange(6)[None] > 2},
    "documents": {"documents": (torch.arange(6) > 2).long()[None]},
}


@pytest.mark.parametrize("attn", choices("attn"), ids=said)
def test_a_mixer_honours_what_it_says_and_nothing_else(attn: Choice) -> None:
    one, both = (
        registry.build("attn", attn, 16, 4, causal).requires_grad_(False)
        for causal in (True, False)
    )
    for mixer in (one, both):
        for number, parameter in enumerate(mixer.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=number))
    x, places = draw(1, 6, 16), torch.arange(6)[None]
    found = {
        what
        for what, change in CHANGES.items()
        if not torch.allclose(
            one(x, Context(places, True, 6, **change)), one(x, Context(places, True, 6))
        )
    }
    later = x + (places == 5)[..., None]
    if not torch.allclose(
        both(later, Context(places, False, 6))[:, 0], both(x, Context(places, False, 6))[:, 0]
    ):
        found.add("both_sides")
    assert found == one.honours


@pytest.mark.parametrize("arch", ["decoder", "encoder"])
@pytest.mark.parametrize("pos", choices("pos"), ids=said)
def test_a_position_changes_the_logits_or_is_refused(pos: Choice, arch: str) -> None:
    """With every mixer; a table that starts at zeros is filled first."""
    for attn in registry.entries("attn"):
        plain = make(attn=attn, pos="none", arch={"name": arch})
        try:
            placed = make(attn=attn, pos=pos, arch={"name": arch})
        except ZooError as refused:
            assert f"attn={attn} " in str(refused)  # noqa: PT017
            continue
        with torch.no_grad():
            for parameter in placed.stack.positions.parameters():
                parameter.copy_(draw(*parameter.shape))
        same = torch.allclose(placed(tokens()), plain(tokens()), atol=1e-6)
        assert same == (pos["name"] == "none"), attn


class RunningMean(Mixer):
    """Known by nobody but these tests: the mean of what was read, whatever it is told of it."""

    def __init__(self, dim: int, heads: int, causal: bool) -> None:
        torch.nn.Module.__init__(self)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


@pytest.mark.usefixtures("own_registry")
def test_what_a_mixer_does_not_honour_is_refused_before_anything_runs() -> None:
    registry.register("attn", "mean")(RunningMean)
    sides = type("BothSides", (RunningMean,), {"honours": frozenset({"both_sides"})})
    registry.register("attn", "means")(sides)
    registry.register("attn", "other")(
        type(
            "Other",
            (torch.nn.Module,),
            {"__init__": RunningMean.__init__, "forward": RunningMean.forward, "rotary_dim": 0},
        )
    )
    registry.register("pos", "slope")(
        type(
            "Slope",
            (registry.build("pos", "none", 16, 4, 4, 16, True).__class__,),
            {"bias": lambda self, queries, keys, device: torch.zeros(queries, keys)},
        )
    )
    tiny = ["arch.dim=16", "arch.layers=2", "loader.length=8", "arch.length=8", "pos=none"]
    refuse_meaningless(RunSpec(config.compose([*tiny, "attn=mean"])))
    for words, wrong in {
        ("attn=mean", "pos=rope"): "attn=mean has no queries and keys",
        ("attn=mean", "pos=alibi"): "attn=mean has no scores",
        ("attn=mean", "pos=slope"): "attn=mean has no scores",
        (
            "attn=mean",
            "loader.isolate=true",
        ): r"attn=mean does not keep documents apart.*loader\.isolate=false",
        (
            "arch.pattern=[{attn: mean},{}]",
            "loader.isolate=true",
        ): "attn=mean does not keep documents apart",
        (
            "attn=mean",
            "arch=encoder",
            "objective=mlm",
        ): "attn=mean reads earlier tokens only.*arch=decoder",
        ("attn=means", "arch=encoder", "objective=mlm"): "attn=means reads padding",
        ("attn=other",): r"attn=other must be a zoo\.nn\.mixer\.Mixer",
    }.items():
        with pytest.raises(ZooError, match=wrong):
            refuse_meaningless(RunSpec(config.compose([*tiny, *words])))
    for mask, wrong in (
        ("padding_mask", "reads padding"),
        ("documents", "does not keep documents apart"),
    ):
        with pytest.raises(ZooError, match=f"attn=mean {wrong}"):
            make(attn="mean")(tokens(), **{mask: torch.ones(2, 12, dtype=torch.bool)})


def test_every_reason_for_a_refusal_is_a_thing_to_honour() -> None:
    assert HONOURED.keys() == {*CHANGES, "both_sides"}
