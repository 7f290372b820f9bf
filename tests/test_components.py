"""Every component that is registered, in a tiny decoder: what has to hold whatever the component
does.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from tests.helpers.components import (
    ARCH,
    BASE,
    Case,
    Choice,
    base,
    cases,
    choices,
    chosen,
    close,
    each,
    loss_of,
    made,
    make,
    said,
    shaken,
    tokens,
)
from zoo import cost, registry
from zoo.context import Context
from zoo.models import Decoder
from zoo.nn import attention_backends

FAR = 100_000


@cases("pos")
def test_neighbours_far_away_stay_apart_in_bfloat16(case: Case) -> None:
    """At 100,000 bfloat16 tells positions apart at 512 only; the exact angles are tested as
    closed forms.
    """
    position: Any = made(case).to(torch.bfloat16).stack.positions[0]
    if position.limit is not None:
        pytest.skip(f"places at most {position.limit}")
    x = torch.ones(1, 2, ARCH["dim"], dtype=torch.bfloat16)
    moved = []
    for first in (0, FAR):
        places = torch.arange(first, first + 2)[None]
        here = (
            position.embed(x, places),
            position.rotate(places)(x.unflatten(-1, (ARCH["heads"], -1)).transpose(1, 2)),
        )
        assert {y.dtype for y in here} == {torch.bfloat16}
        moved.append([not torch.equal(y[..., 0, :], y[..., 1, :]) for y in here])
    assert moved[0] == moved[1]


@pytest.mark.parametrize("group", BASE)
def test_it_has_as_many_parameters_on_the_meta_device(group: str) -> None:
    for name in registry.entries(group):
        there = make(device="meta", **{group: chosen(group, name)})
        here: Decoder = registry.build("arch", ARCH, base(**{group: chosen(group, name)}))
        sizes = [{name: p.shape for name, p in model.named_parameters()} for model in (there, here)]
        assert sizes[0] == sizes[1], name
        assert sum(cost.parameters(there).values()) == sum(p.numel() for p in here.parameters())


@pytest.mark.parametrize("choice", choices("norm"), ids=said)
@pytest.mark.parametrize("shape", [(16,), (3, 16), (2, 4, 5, 16)])
def test_a_norm_takes_any_leading_shape(choice: Choice, shape: tuple[int, ...]) -> None:
    norm = registry.build("norm", choice, 16)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert norm(x).shape == shape
    close(norm(x).flatten()[-16:], norm(x.reshape(-1, 16)[-1]))


@pytest.mark.parametrize("choice", choices("attn"), ids=said)
def test_a_row_that_sees_nothing_gives_zeros(choice: Choice) -> None:
    """Attention without its biases, on a row of padding only: zeros, and gradients that are
    numbers.
    """
    attn = registry.build("attn", choice, 16, 4, True)
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    biases = [one for name, one in attn.named_parameters() if one.ndim < 2 and "norm" not in name]
    with torch.no_grad():
        for bias in biases:
            bias.zero_()
    padding = torch.tensor([[True] * 6, [False] * 6])
    for bias in (
        (None, torch.zeros(1, 4, 6, 6, requires_grad=True)) if "bias" in attn.honours else (None,)
    ):
        y = attn(x, Context(torch.arange(6)[None], True, 6, padding, bias=bias))
        assert (y[1] == 0).all()
        assert (y[0] != 0).any()
        matrices = [parameter for parameter in attn.parameters() if parameter.ndim >= 2]
        leaves = [x, *matrices, *([] if bias is None else [bias])]
        for gradient in torch.autograd.grad(y.square().sum(), leaves):
            assert gradient.isfinite().all()


def test_the_base_is_what_a_decoder_is_made_of() -> None:
    """A group that configurations choose from for a decoder, and that the tests above would
    leave out.
    """
    from zoo import config

    told = config.choices(config.compose([]))
    elsewhere = {"arch", "data", "tokenizer", "objective", "optim", "schedule"}
    assert told.keys() - elsewhere == BASE.keys()
    assert isinstance(make(), Decoder)


@pytest.mark.parametrize("placed", ["in the residual stream", "of queries and keys"])
@each("norm")
def test_mixed_precision_makes_torch_warn_of_nothing(norm: Choice, placed: str) -> None:
    """Sublayers give 16 bits and weights have 32; what comes out is what 32 bits give, to the 8
    that are kept.
    """
    if placed == "of queries and keys" and norm["name"] == "none":
        pytest.skip("attn.qk_norm=null says that")
    parts = (
        {"norm": norm, "residual": "sandwich"}
        if placed == "in the residual stream"
        else {"attn": chosen("attn", "mha") | {"qk_norm": norm["name"]}}
    )
    model = shaken(make(**parts))
    exact = model(tokens())
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
            warnings.simplefilter("error")
            loss_of(model).backward()
            rounded = model(tokens())
    finally:
        torch.set_warn_always(False)
    close(rounded.float(), exact, 0.1)


def test_flex_attention_without_a_gpu_makes_torch_warn_of_nothing() -> None:
    model = make(attn=chosen("attn", "mha") | {"backend": "flex"})
    with warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        attention_backends._flex_attention.cache_clear()
        model(tokens())
    assert [str(warning.message) for warning in told] == []
