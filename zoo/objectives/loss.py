"""Computes cross-entropy from a part of the logits at a time; they never exist all at once.

Each function takes the hidden states (N, dim), the head, the embedding that it may share, and
labels (N,), for `model(..., head_fn=)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# In memory at a time: with fewer, adding up the head's gradients costs more than it saves.
LOGITS_AT_ONCE = 2**22


def summed_nats(
    hidden: Tensor,
    head: nn.Module,
    embedding: Tensor,
    labels: Tensor,
    ignore: int,
    smoothing: float,
) -> Tensor:
    """Nats, summed over the labels that are not `ignore`, with label smoothing (Szegedy 2016)."""

    def nats(hidden: Tensor, labels: Tensor) -> Tensor:
        logits = at_least_float32(head(hidden, embedding))
        return F.cross_entropy(
            logits, labels, ignore_index=ignore, reduction="sum", label_smoothing=smoothing
        )

    size = positions_at_once(len(embedding))
    # a compiler splits the work in its own way
    if len(labels) <= size or torch.compiler.is_compiling():
        return nats(hidden, labels)
    if not torch.is_grad_enabled():
        parts = zip(hidden.split(size), labels.split(size), strict=True)
        return torch.stack([nats(*part) for part in parts]).sum()
    parameters = [p for p in (embedding, *head.parameters()) if p.requires_grad]
    return _SummedNats.apply(nats, size, hidden, labels, *parameters)


def nats_and_hits(
    hidden: Tensor, head: nn.Module, embedding: Tensor, labels: Tensor, ignore: int
) -> tuple[Tensor, Tensor]:
    """For each label its nats, and whether it is the likeliest token."""
    nats, hits = [], []
    size = positions_at_once(len(embedding))
    for part, targets in zip(hidden.split(size), labels.split(size), strict=True):
        logits = at_least_float32(head(part, embedding))
        nats.append(F.cross_entropy(logits, targets, ignore_index=ignore, reduction="none"))
        hits.append(logits.argmax(-1) == targets)
    return torch.cat(nats), torch.cat(hits)


def at_least_float32(logits: Tensor) -> Tensor:
    """Logits in float32 or better: a sum in bfloat16 would be off by a hundredth."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def positions_at_once(vocab: int) -> int:
    """For how many positions the logits are in memory at a time."""
    return max(1, LOGITS_AT_ONCE // vocab)


class _SummedNats(torch.autograd.Function):
    """Computes a sum's gradients in its forward pass, part by part, and keeps no logits."""

    @staticmethod
    def forward(
        ctx: Any,
        nats: Callable[[Tensor, Tensor], Tensor],
        size: int,
        hidden: Tensor,
        labels: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        total = torch.zeros((), device=hidden.device)
        hidden_gradient = torch.empty_like(hidden)
        gradients: list[Tensor | None] = []
        parts = zip(
            hidden.split(size), labels.split(size), hidden_gradient.split(size), strict=True
        )
        for part, targets, part_gradient in parts:
            with torch.enable_grad():
                part = part.detach().requires_grad_()
                value = nats(part, targets)
            first, *others = torch.autograd.grad(value, [part, *parameters], allow_unused=True)
            part_gradient.copy_(first)
            total = total + value.detach()
            if not gradients:
                gradients = list(others)
                continue
            for accumulated, gradient in zip(gradients, others, strict=True):
                if accumulated is not None:
                    accumulated += gradient
        ctx.save_for_backward(hidden_gradient, *gradients)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *parameters = [
            None if saved is None else saved * gradient for saved in ctx.saved_tensors
        ]
        return None, None, hidden, None, *parameters
