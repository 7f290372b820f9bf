"""Second implementations that were worth it (benchmarks/README.md): each gives what the plain
one gives, gradients too.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.helpers.components import close, loss_of, made, tokens
from zoo import generation
from zoo.components import norm
from zoo.generation import decoding
from zoo.nn import attention_backends, cpu_kernels


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "SMALLEST_NORM", 0)
    monkeypatch.setattr(cpu_kernels, "SMALLEST_SCORES", 0)
    torch.manual_seed(0)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def same(one: Tensor, other: Tensor, leaves: tuple[Tensor, ...]) -> None:
    assert type(one.grad_fn) is not type(other.grad_fn), "two ways are compared"
    close(one, other)
    weights = torch.randn_like(one)
    for mine, theirs in zip(
        *(torch.autograd.grad(y, leaves, weights) for y in (one, other)), strict=True
    ):
        close(mine, theirs)


def test_rms_norm_in_few_passes() -> None:
    made, x = norm.RMSNorm(7, eps=1e-3).double(), leaf(3, 5, 7)
    torch.nn.init.normal_(made.weight)
    same(made(x), F.rms_norm(x, (7,), made.weight, 1e-3), (x, made.weight))
    assert torch.autograd.gradcheck(made, (x,))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("blind", [False, True], ids=["all see", "one sees nothing"])
def test_attention_with_a_bias_that_is_learned(rows: int, blind: bool) -> None:
    q, k, v, bias = leaf(3, 2, 5, 4), leaf(3, 2, 6, 4), leaf(3, 2, 6, 4), leaf(rows, 2, 5, 6)
    hidden = torch.rand(rows, 1, 5, 6) < 0.3
    hidden[..., 0, :] = blind

    def masked(bias: Tensor) -> Tensor:
        return bias.masked_fill(hidden, -torch.inf)

    def fast(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return attention_backends.sdpa(q, k, v, masked(bias), False, 0.3, 0.0, None)

    same(
        fast(q, k, v, bias),
        attention_backends.eager(q, k, v, masked(bias), False, 0.3, 0.0, None),
        (q, k, v, bias),
    )
    assert torch.autograd.gradcheck(fast, (q, k, v, bias))


def test_column_major_weights_generate_the_same_and_are_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, seen = made(("ffn", {"name": "swiglu"})), list[bool]()
    model.stack.register_forward_hook(lambda *_: seen.append(model.embed.weight.is_contiguous()))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    monkeypatch.setattr(decoding, "MANY", 6)
    plain = generation.generate(model, tokens(), 5, temperature=0)
    by_columns = generation.generate(model, tokens(), 6, temperature=0)
    assert seen == [True] * 5 + [False] * 6
    assert torch.equal(by_columns[:, :5], plain)
    assert all(
        torch.equal(weight, before[name]) and weight.is_contiguous()
        for name, weight in model.state_dict().items()
    )
    loss_of(model).backward()
    assert all(weight.grad is not None for weight in model.parameters())
    with pytest.raises(RuntimeError, match="stopped"), decoding.column_major(model):
        raise RuntimeError("stopped")
    assert model.embed.weight.is_contiguous()
