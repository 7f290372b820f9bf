"""From hidden states to logits. Wiring: dim, vocab. Shapes: (..., dim) and the embedding (vocab, dim) -> (..., vocab)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.registry import register


@register("head", "linear")
class LinearHead(nn.Module):
    """x·Eᵀ with the embedding's own weight (tied: Press & Wolf 2017), or with a matrix of its own."""

    def __init__(self, dim: int, vocab: int, *, tied: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.cost = 2 * dim * vocab
        self.weight = None if tied else nn.Parameter(torch.empty(vocab, dim))
        self.bias = nn.Parameter(torch.zeros(vocab)) if bias else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return F.linear(x, embedding if self.weight is None else self.weight, self.bias)

    def flops(self, length: int) -> int:
        return self.cost
