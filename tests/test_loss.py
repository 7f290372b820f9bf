"""The chunked loss: the numbers of all logits at once, for every head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.helpers.components import close
from zoo.objectives import IGNORE, loss
from zoo.registry import build, entries

DIM, VOCAB, PLACES = 6, 11, 10
HEADS: list[dict[str, Any]] = [
    {"name": "linear"},
    {"name": "linear", "tied": False, "bias": True},
    {"name": "linear", "softcap": 2.0, "scaled": True},
    {"name": "transform"},
    {"name": "transform", "tied": False, "norm": "rms"},
]
each_head = pytest.mark.parametrize("choice", HEADS, ids=str)


@pytest.fixture(autouse=True)
def _in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "LOGITS_AT_ONCE", 4 * VOCAB)  # four places, four, and two
    torch.manual_seed(0)


def made(choice: dict[str, Any]) -> tuple[Any, Tensor, Tensor, Tensor]:
    """A head, an embedding, hidden states and labels, in float64."""
    head: Any = build("head", choice, DIM, VOCAB).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    labels = torch.randint(VOCAB, (PLACES,))
    labels[[2, 4, 5, 6, 7]] = IGNORE  # a part without a label, too
    embedding, hidden = (
        torch.randn(n, DIM, dtype=torch.double, requires_grad=True) for n in (VOCAB, PLACES)
    )
    return head, embedding, hidden, labels


def test_every_head_with_logits_is_tested() -> None:
    assert {head["name"] for head in HEADS} == set(entries("head")) - {"pooler"}


@each_head
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_chunked_loss_and_gradients_match_the_full_ones(
    choice: dict[str, Any], smoothing: float
) -> None:
    head, embedding, hidden, labels = made(choice)
    leaves = [hidden, *([embedding] if head.weight is None else []), *head.parameters()]
    whole = F.cross_entropy(
        head(hidden, embedding),
        labels,
        ignore_index=IGNORE,
        reduction="sum",
        label_smoothing=smoothing,
    )
    parts = loss.summed_nats(hidden, head, embedding, labels, IGNORE, smoothing)
    assert "Summed" in type(parts.grad_fn).__name__
    close(parts, whole)
    for one, other in zip(
        torch.autograd.grad(parts / 3, leaves), torch.autograd.grad(whole / 3, leaves), strict=True
    ):
        close(one, other)
    with torch.no_grad():
        close(loss.summed_nats(hidden, head, embedding, labels, IGNORE, smoothing), whole)


@each_head
def test_chunked_loss_passes_gradcheck(choice: dict[str, Any]) -> None:
    head, embedding, hidden, labels = made(choice)

    def value(hidden: Tensor, embedding: Tensor, *_: Tensor) -> Tensor:
        return loss.summed_nats(hidden, head, embedding, labels, IGNORE, 0.1)

    assert torch.autograd.gradcheck(value, (hidden, embedding, *head.parameters()))


def test_frozen_embedding_gets_no_gradient() -> None:
    head, embedding, hidden, labels = made({"name": "linear", "bias": True})
    embedding.requires_grad_(False)
    loss.summed_nats(hidden, head, embedding, labels, IGNORE, 0.0).backward()
    assert embedding.grad is None
    assert head.bias.grad is not None
    assert hidden.grad is not None


def test_chunked_evaluation_matches_the_full_one() -> None:
    head, embedding, hidden, labels = made({"name": "linear"})
    nats, right = loss.nats_and_hits(hidden, head, embedding, labels, IGNORE)
    logits = head(hidden, embedding)
    close(nats, F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none"))
    assert torch.equal(right, logits.argmax(-1) == labels)


def test_chunked_loss_under_bfloat16_autocast() -> None:
    head, embedding, hidden, labels = made({"name": "linear", "tied": False})
    head, hidden = head.float(), hidden.detach().float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        parts = loss.summed_nats(hidden, head, embedding, labels, IGNORE, 0.0)
        whole = F.cross_entropy(
            head(hidden, embedding), labels, ignore_index=IGNORE, reduction="sum"
        )
    close(parts, whole, 1e-4)
    leaves = [hidden, head.weight]
    for one, other in zip(
        torch.autograd.grad(parts, leaves), torch.autograd.grad(whole, leaves), strict=True
    ):
        assert one.dtype == torch.float32
        close(one, other, 2e-2)


@each_head
def test_loss_of_bfloat16_logits_is_float32(choice: dict[str, Any]) -> None:
    """That of the same logits in float64; a sum in bfloat16 would be off by a hundredth."""
    head, embedding, hidden, labels = made(choice)
    head, embedding, hidden = head.bfloat16(), embedding.bfloat16(), hidden.bfloat16()
    exact = F.cross_entropy(
        head(hidden, embedding).double(), labels, ignore_index=IGNORE, reduction="none"
    )
    nats, _ = loss.nats_and_hits(hidden, head, embedding, labels, IGNORE)
    with torch.no_grad():
        values = [nats.sum(), loss.summed_nats(hidden, head, embedding, labels, IGNORE, 0.0)]
    for value in (*values, loss.summed_nats(hidden, head, embedding, labels, IGNORE, 0.0)):
        torch.testing.assert_close(value.double(), exact.sum(), rtol=1e-6, atol=0)
