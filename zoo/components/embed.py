"""Token embedding. Wiring: vocab, dim. Shapes: (B, Q) integers -> (B, Q, dim). It has a `weight` of shape (vocab, dim)."""

from __future__ import annotations

from torch import nn

from zoo.registry import register


@register("embed", "plain")
class Embedding(nn.Embedding):
    """A vector for each token of the vocabulary."""

    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__(vocab, dim)

    def flops(self, length: int) -> int:
        return 0  # a look-up
