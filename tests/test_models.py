"""Whole models: what masks, caches, packing and uneven layers leave as it was, for every
attention and position.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import zoo
from tests.helpers.components import (
    Choice,
    attentions,
    choices,
    close,
    gradients,
    loss_of,
    made,
    made_or_skipped,
    make,
    mixers,
    option,
    said,
    shaken,
    tokens,
    words_of,
)
from zoo import config, generation, models, registry
from zoo.components.pos import Position
from zoo.conformance.sequences import (
    DOCUMENTS,
    LENGTH,
    check_cache,
    check_documents,
    check_padding,
    in_chunks,
)
from zoo.conformance.sequences import LEFT_PADDED as LEFT
from zoo.conformance.sequences import POSITIONS as PLACES
from zoo.conformance.sequences import RIGHT_PADDED as RIGHT
from zoo.context import Cache
from zoo.errors import ZooError

UNEVEN: list[Any] = [
    {"attn": {"window": 2}},
    {},
    {"pos": {"base": 100.0}, "ffn": "swiglu"},
]  # as Gemma 2 or ModernBERT
BACKED = [attn for attn in attentions() if "backend" in attn and not attn.get("qk_norm")]

each_mixer = pytest.mark.parametrize(("attn", "pos"), mixers(), ids=said)


@each_mixer
def test_cached_is_full(attn: Choice, pos: Choice) -> None:
    check_cache(made_or_skipped(attn=attn, pos=pos))


@each_mixer
def test_padding_changes_no_token(attn: Choice, pos: Choice) -> None:
    check_padding(made_or_skipped(attn=attn, pos=pos))


@each_mixer
def test_isolated_documents_are_alone(attn: Choice, pos: Choice) -> None:
    check_documents(made_or_skipped(attn=attn, pos=pos))


def test_layers_that_differ_are_cached_padded_and_packed_alike() -> None:
    for check in (check_cache, check_padding, check_documents):
        check(shaken(make(arch={"layers": 4, "pattern": UNEVEN})))


class Distance(Position):
    """Known by nobody but these tests: a learned bias for each head, times the distance (as
    ALiBi).
    """

    def __init__(self, dim: int, heads: int, width: int, length: int, causal: bool) -> None:
        super().__init__(dim, heads, width, length, causal)
        self.slopes = torch.nn.Parameter(torch.empty(1, heads, 1, 1))

    def bias(self, queries: int, keys: int, device: torch.device) -> Tensor:
        key = torch.arange(keys, device=device)
        return -self.slopes.abs() * (key[keys - queries :, None] - key).abs()


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("attn", attentions(), ids=said)
def test_so_it_is_with_a_bias_on_the_scores(attn: Choice) -> None:
    registry.register("pos", "distance")(Distance)
    model = made_or_skipped(attn=attn, pos={"name": "distance"})
    plain = made_or_skipped(attn=attn, pos={"name": "none"})
    plain.load_state_dict(model.state_dict(), strict=False)
    biased = not torch.allclose(model(tokens()), plain(tokens()))
    assert biased
    for check in (check_cache, check_padding, check_documents):
        check(model)
    empty = torch.tensor([[True] * LENGTH, [False] * LENGTH])
    for gradient in gradients(model, loss_of(model, padding_mask=empty)).values():
        assert gradient.isfinite().all()


WAYS: dict[str, dict[str, Any]] = {
    "causal": {},
    "left": {"padding_mask": LEFT},
    "right": {"padding_mask": RIGHT},
    "documents": {"documents": DOCUMENTS, "positions": PLACES},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("both_sides", [False, True], ids=["causal", "both_sides"])
@pytest.mark.parametrize("attn", BACKED, ids=said)
def test_backends_agree(attn: Choice, both_sides: bool, way: str) -> None:
    backend = option("attn", attn["name"], "backend")
    first, *others = (made(("attn", {**attn, "backend": word})) for word in words_of(backend))
    for model in (first, *others):
        model.stack.causal = not both_sides
    for other in others:
        close(other(tokens(), **WAYS[way]), first(tokens(), **WAYS[way]))
        theirs = gradients(other, loss_of(other, **WAYS[way]))
        for name, gradient in gradients(first, loss_of(first, **WAYS[way])).items():
            close(theirs[name], gradient)
        if way == "causal":
            with torch.no_grad():
                close(
                    in_chunks(other, Cache(LENGTH), 5, 3, 4),
                    in_chunks(first, Cache(LENGTH), 5, 3, 4),
                )


@pytest.mark.parametrize("attn", choices("attn"), ids=said)
def test_packed_documents_behind_a_cache_stay_apart_or_are_refused(attn: Choice) -> None:
    model, cache = made(("attn", attn)), Cache(LENGTH)
    whole = model(tokens(), documents=DOCUMENTS, positions=PLACES)
    try:
        parts = [
            model(tokens()[:, at], documents=DOCUMENTS[:, at], positions=PLACES[:, at], cache=cache)
            for at in (slice(0, 6), slice(6, 7), slice(7, LENGTH))
        ]
    except ZooError:
        return
    close(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("attn", choices("attn"), ids=said)
def test_recomputing_changes_no_gradient(attn: Choice, dropout: float) -> None:
    attn = attn | ({"dropout": dropout} if option("attn", attn["name"], "dropout") else {})
    model = made(("attn", attn), arch={"dropout": dropout}).train()
    found = []
    for model.stack.checkpointing in (False, True):
        torch.manual_seed(0)
        loss = loss_of(model, padding_mask=LEFT)
        found.append({"loss": loss.detach(), **gradients(model, loss)})
    for name in found[0]:
        close(found[1][name], found[0][name], 1e-7)
    assert (loss_of(model) != loss_of(model)).item() == (dropout > 0)
    model.eval()
    assert loss_of(model).item() == loss_of(model).item()


@pytest.mark.parametrize("pos", choices("pos"), ids=said)
def test_a_sequence_longer_than_a_table_is_refused_by_name(pos: Choice) -> None:
    model = made(("pos", pos))
    if model.stack.limit is None:
        assert model(tokens(1, 40)).isfinite().all()
        return
    assert model(tokens(1, model.stack.limit)).isfinite().all()
    with pytest.raises(ZooError, match=r"17 tokens is longer than the 16 .*arch\.length"):
        model(tokens(1, 17))
    cache = Cache(20)
    model(tokens(1, 16), cache=cache)
    with pytest.raises(ZooError, match=r"arch\.length"):
        model(tokens(1, 1), cache=cache)


@pytest.mark.parametrize("pos", choices("pos"), ids=said)
def test_a_given_position_beyond_a_table_is_refused_by_name(pos: Choice) -> None:
    model = made(("pos", pos))
    far = torch.arange(4)[None] + 50
    if model.stack.limit is None:
        assert model(tokens(1, 4), positions=far).isfinite().all()
        return
    with pytest.raises(ZooError):
        model(tokens(1, 4), positions=far)


@pytest.mark.parametrize("pos", choices("pos"), ids=said)
def test_the_position_of_any_layer_has_an_effect_or_is_refused(pos: Choice) -> None:
    """A pattern may give a later layer a position of its own; it must not be dropped in silence."""
    try:
        one = make(arch={"pattern": [{"pos": "none"}, {"pos": pos}]})
    except ZooError:
        return
    lost = torch.equal(one(tokens()), make(pos={"name": "none"})(tokens()))
    assert lost == (pos["name"] == "none")


@pytest.mark.parametrize(
    ("prompt", "asked", "said"),
    [
        (4, {"new": 9}, "ask for at most 8$"),
        (14, {"new": 9}, "shorten the prompt to 6 tokens and ask for at most 6$"),
        (14, {"new": 2}, "shorten the prompt to 10 tokens and ask for at most 2$"),
        (4, {"new": 1, "temperature": float("nan")}, "finite temperature"),
        (4, {"new": 1, "temperature": float("inf")}, "finite temperature"),
        (4, {"new": 1, "seed": 2**64}, "seed < 2"),
    ],
)
def test_generation_says_what_can_be_asked_for(
    prompt: int, asked: dict[str, Any], said: str
) -> None:
    model = make(pos="learned", arch={"length": 12})
    with pytest.raises(ZooError, match=said):
        generation.generate(model, tokens(1, prompt), **asked)


@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 1e-300])
def test_a_tiny_temperature_is_none(temperature: float) -> None:
    model = make()
    coldest = generation.generate(model, tokens(2, 4), 6, temperature=0)
    assert torch.equal(
        generation.generate(model, tokens(2, 4), 6, temperature=temperature, top_k=3), coldest
    )


def test_a_pattern_repeats_over_the_depth() -> None:
    model = make(arch={"layers": 7, "pattern": UNEVEN})
    blocks: Any = model.stack.blocks
    attentions = [block.attn.sublayer for block in blocks]
    assert [attention.window for attention in attentions] == [2, None, None] * 2 + [2]
    assert [hasattr(block.ffn.sublayer, "gate") for block in blocks] == [False, False, True] * 2 + [
        False
    ]
    assert model.stack.position_of == [0, 0, 1] * 2 + [0]
    with pytest.raises(ZooError, match=r"arch\.pattern names 'atn'"):
        make(arch={"pattern": [{"atn": {"window": 2}}]})
    with pytest.raises(ZooError, match="did you mean 'window'"):
        make(arch={"pattern": [{"attn": {"windwo": 2}}]})


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"attn": {"name": "gqa", "kv_heads": 3}}, "4 heads cannot share 3 KV heads"),
        ({"arch": {"dim": 18}}, "arch.dim=18 is not a multiple of arch.heads=4"),
        ({"arch": {"dim": 20}}, "must be even, not 5"),
        ({"attn": {"name": "mha", "head_dim": 5}}, "must be even, not 5"),
        ({"pos": {"name": "sinusoidal"}, "arch": {"dim": 15, "heads": 3}}, "even arch.dim, not 15"),
        ({"pos": {"name": "rope", "fraction": 0.2}}, "must be even, not 0"),
        (
            {"attn": {"name": "mha", "scale": 0.0}},
            r"attn\.scale",
        ),  # times the mask's -inf it is not a number
        ({"attn": {"name": "mha", "window": 0}}, "attn.window must be at least 1"),
        ({"arch": {"layers": 0}}, "arch.layers must be at least 1"),
        ({"arch": {"vocab": None}}, "arch.vocab is not known"),
    ],
    ids=said,
)
def test_what_has_no_meaning_is_refused_before_it_costs_anything(
    parts: dict[str, Any], told: str
) -> None:
    with pytest.raises(ZooError, match=told):
        make(device="meta", **parts)


def test_zoo_build_takes_the_words_of_the_command_line() -> None:
    words = ["norm=rms", "pos=rope", "arch.dim=32", "arch.layers=1", "norm.eps=1e-5"]
    model = zoo.build("gpt", *words, seed=3)
    same = models.build(config.compose(["model=gpt", *words]), seed=3)
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(model.parameters(), same.parameters(), strict=True)
    )
    assert model(tokens()).shape == (2, LENGTH, 257)
