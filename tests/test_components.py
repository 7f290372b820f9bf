"""Every component that is registered, in a tiny decoder: what has to hold whatever the component does."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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
    gradients,
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
from zoo.nn import attention

FAR = 100_000


def state_of(model: nn.Module) -> dict[str, Any]:
    """All that a module could have changed: attributes by identity, plain containers and tensors by content."""
    state: dict[str, Any] = {}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            state[f"{path}:{key}"] = (
                copy.copy(value) if isinstance(value, list | dict | set) else id(value)
            )
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return state | {
        name: (tensor._version, tensor.detach().clone()) for name, tensor in tensors.items()
    }


def unchanged(before: dict[str, Any], after: dict[str, Any]) -> bool:
    same = before.keys() == after.keys()
    for key in before:
        one, other = before[key], after[key]
        if isinstance(one, tuple):
            same = same and one[0] == other[0] and torch.equal(one[1], other[1])
        else:
            same = same and one == other
    return same


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@cases()
def test_logits_have_a_row_a_token(case: Case) -> None:
    model = made(case)
    for batch, length in ((1, 1), (3, 16)):
        logits = model(tokens(batch, length))
        assert logits.shape == (batch, length, model.head.width)
        assert logits.isfinite().all()


@cases()
def test_every_parameter_gets_a_gradient(case: Case) -> None:
    model = made(case)
    for name, gradient in gradients(model, loss_of(model)).items():
        assert gradient.isfinite().all(), name
        assert gradient.abs().max() > 1e-7, name


@cases()
@pytest.mark.parametrize("padded", [False, True])
def test_blocks_that_are_recomputed_give_the_same_gradients(case: Case, padded: bool) -> None:
    model, given = (
        made(case),
        {"padding_mask": torch.arange(12)[None] < torch.tensor([[12], [9]])} if padded else {},
    )
    kept = gradients(model, loss_of(model, **given))
    model.stack.checkpointing = True
    for name, gradient in gradients(model, loss_of(model, **given)).items():
        close(gradient, kept[name], 1e-6)


@cases()
def test_no_token_sees_a_later_one(case: Case) -> None:
    model = made(case)
    x = model.embed(tokens(1, 8)).detach().requires_grad_()
    logits = model.logits(model.stack(x))
    for t in range(x.shape[1]):
        (gradient,) = torch.autograd.grad(logits[:, t].square().sum(), x, retain_graph=True)
        reached = gradient.abs().amax((0, 2))
        assert (reached[t + 1 :] == 0).all(), (
            f"token {t} sees {reached[t + 1 :].nonzero().flatten() + t + 1}"
        )
        assert reached[t] > 0
        assert t == 0 or (reached[:t] > 0).any(), f"token {t} sees nothing before it"


@cases()
def test_a_later_token_changes_nothing(case: Case) -> None:
    """Also where no gradient would tell, as in a hard choice of experts."""
    model, before = made(case), tokens()
    after = before.clone()
    after[:, 8:] = (after[:, 8:] + 1) % ARCH["vocab"]
    with torch.no_grad():
        close(model(after)[:, :8], model(before)[:, :8], 1e-6)


@cases()
def test_forward_changes_nothing_and_repeats(case: Case) -> None:
    model = made(case).train()
    before = state_of(model)
    first = model(tokens())
    assert torch.equal(model(tokens()), first)
    assert unchanged(before, state_of(model))


@cases()
def test_it_is_a_function_of_its_parameters(case: Case) -> None:
    model = made(case)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, parameters, (tokens(),)).square().mean()

    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    functional = torch.func.grad(loss)(parameters)
    for name, gradient in gradients(model, model(tokens()).square().mean()).items():
        close(functional[name], gradient, 1e-6)


@cases()
def test_saved_and_loaded_gives_the_same_bits(case: Case) -> None:
    model, file = made(case), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = make(**{case[0]: case[1]})
    assert not torch.equal(other(tokens()), model(tokens()))
    assert other.load_state_dict(torch.load(file, weights_only=True)).missing_keys == []
    assert torch.equal(other(tokens()), model(tokens()))


@cases()
@pytest.mark.parametrize("way", ["cast", "autocast"])
def test_bfloat16_is_near_float32(case: Case, way: str) -> None:
    model = (
        made(case).to(torch.bfloat16).float()
    )  # the same weights in both, so that only the arithmetic differs
    with torch.no_grad():
        expected = model(tokens())
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
            actual = (model.to(torch.bfloat16) if way == "cast" else model)(tokens())
    assert actual.isfinite().all()
    assert relative_error(actual, expected) < 0.03  # bfloat16 has 8 bits: .004 a rounding


@cases()
def test_bfloat16_trains(case: Case) -> None:
    model = made(case).to(torch.bfloat16)
    for name, gradient in gradients(model, loss_of(model)).items():
        assert gradient.isfinite().all(), name
        assert gradient.dtype == torch.bfloat16, name


@cases("pos")
def test_neighbours_far_away_stay_apart_in_bfloat16(case: Case) -> None:
    """At 100,000 bfloat16 tells positions apart at 512 only; the exact angles are tested as closed forms."""
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


@cases()
def test_tokens_are_worth_the_same_in_any_batch(case: Case) -> None:
    model = made(case)
    with torch.no_grad():
        close(model(tokens(5))[2:3], model(tokens(5)[2:3]))


@cases()
def test_the_head_need_not_see_every_token(case: Case) -> None:
    """model(tokens) is the head of the body, and the head takes any number of hidden states."""
    model = made(case)
    hidden = model.hidden(tokens())
    assert hidden.shape == (2, 12, ARCH["dim"])
    close(model.logits(hidden[:, 3::4].flatten(0, 1)), model(tokens())[:, 3::4].flatten(0, 1))


@pytest.mark.parametrize("choice", choices("norm"), ids=said)
@pytest.mark.parametrize("shape", [(16,), (3, 16), (2, 4, 5, 16)])
def test_a_norm_takes_any_leading_shape(choice: Choice, shape: tuple[int, ...]) -> None:
    norm = registry.build("norm", choice, 16)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert norm(x).shape == shape
    close(norm(x).flatten()[-16:], norm(x.reshape(-1, 16)[-1]))


@pytest.mark.parametrize("choice", choices("attn"), ids=said)
def test_a_row_that_sees_nothing_gives_zeros(choice: Choice) -> None:
    """Attention without its biases, on a row of padding only: zeros, and gradients that are numbers."""
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


@cases()
def test_a_row_of_padding_leaves_every_gradient_a_number(case: Case) -> None:
    model = made(case)
    mask = torch.tensor([[True] * 12, [False] * 12])
    loss = loss_of(model, padding_mask=mask)
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients(model, loss).values())


def test_the_base_is_what_a_decoder_is_made_of() -> None:
    """A group that configurations choose from for a decoder, and that the tests above would leave out."""
    from zoo import config

    told = config.choices(config.compose([]))
    elsewhere = {"arch", "data", "tokenizer", "objective", "optim", "schedule"}
    assert told.keys() - elsewhere == BASE.keys()
    assert isinstance(make(), Decoder)


@pytest.mark.parametrize("placed", ["in the residual stream", "of queries and keys"])
@each("norm")
def test_mixed_precision_makes_torch_warn_of_nothing(norm: Choice, placed: str) -> None:
    """Sublayers give 16 bits and weights have 32; what comes out is what 32 bits give, to the 8 that are kept."""
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
        attention._flex_attention.cache_clear()
        model(tokens())
    assert [str(warning.message) for warning in told] == []
