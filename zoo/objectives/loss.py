"""The cross-entropy of labels, a part of the logits at a time, so that those of a long text never exist together.

A function of hidden states (N, dim), the head with the embedding that it may share, and labels (N,), for `model(..., read=)`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LOGITS = (
    2**22
)  # in memory at a time: with fewer, adding up the head's gradients costs more than it saves


def summed(
    hidden: Tensor,
    head: nn.Module,
    embedding: Tensor,
    labels: Tensor,
    ignore: int,
    smoothing: float,
) -> Tensor:
    """Nats, summed over the labels that are not `ignore`, with label smoothing (Szegedy 2016)."""

    def nats(hidden: Tensor, labels: Tensor) -> Tensor:
        logits = precise(head(hidden, embedding))
        return F.cross_entropy(
            logits, labels, ignore_index=ignore, reduction="sum", label_smoothing=smoothing
        )

    most = rows(len(embedding))
    if len(labels) <= most or torch.compiler.is_compiling():  # a compiler has its own ways
        return nats(hidden, labels)
    if not torch.is_grad_enabled():
        return torch.stack(
            [nats(*part) for part in zip(hidden.split(most), labels.split(most), strict=True)]
        ).sum()
    parameters = [
        parameter for parameter in (embedding, *head.parameters()) if parameter.requires_grad
    ]
    return _Summed.apply(nats, most, hidden, labels, *parameters)


def measured(
    hidden: Tensor, head: nn.Module, embedding: Tensor, labels: Tensor, ignore: int
) -> tuple[Tensor, Tensor]:
    """Of each label: its nats, and whether it is the likeliest token."""
    found, most = [], rows(len(embedding))
    for part, wanted in zip(hidden.split(most), labels.split(most), strict=True):
        logits = precise(head(part, embedding))
        found.append(
            (
                F.cross_entropy(logits, wanted, ignore_index=ignore, reduction="none"),
                logits.argmax(-1) == wanted,
            )
        )
    nats, right = zip(*found, strict=True)
    return torch.cat(nats), torch.cat(right)


def precise(logits: Tensor) -> Tensor:
    """Logits in 32 bits at least: a sum in 16 would know the loss of a batch to a hundredth only."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def rows(vocab: int) -> int:
    """Of how many places the logits are in memory at a time."""
    return max(1, LOGITS // vocab)


class _Summed(torch.autograd.Function):
    """A sum whose gradients are made part by part, while its value is."""

    @staticmethod
    def forward(
        ctx: Any, nats: Any, rows: int, hidden: Tensor, labels: Tensor, *parameters: Tensor
    ) -> Tensor:
        total, at_hidden, sums = (
            torch.zeros((), device=hidden.device),
            torch.empty_like(hidden),
            list[Tensor | None](),
        )
        for part, wanted, place in zip(
            hidden.split(rows), labels.split(rows), at_hidden.split(rows), strict=True
        ):
            with torch.enable_grad():
                part = part.detach().requires_grad_()
                value = nats(part, wanted)
            gradient, *gradients = torch.autograd.grad(
                value, [part, *parameters], allow_unused=True
            )
            place.copy_(gradient)
            total = total + value.detach()
            for old, new in zip(sums, gradients, strict=bool(sums)):
                if old is not None:
                    old += new
            sums = sums or list(gradients)
        ctx.save_for_backward(at_hidden, *sums)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        at_hidden, *sums = (None if kept is None else kept * gradient for kept in ctx.saved_tensors)
        return None, None, at_hidden, None, *sums
