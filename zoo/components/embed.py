"""Token embedding. Wiring: vocab, dim. Shapes: (B, Q) integers, and where it has such, (B, Q)
segments -> (B, Q, dim).

It has a `weight` of shape (vocab, dim), which a tied head shares.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge
from torch import Tensor, nn

from zoo.errors import ZooError
from zoo.registry import register


@register("embed", "plain")
class Embedding(nn.Embedding):
    """A vector for each token of the vocabulary."""

    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__(vocab, dim)

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        if segments is not None:
            raise ZooError("this embedding has no segments: choose embed=segments")
        return super().forward(tokens)

    def flops(self, length: int) -> int:
        return 0  # a look-up


@register("embed", "scaled")
class Scaled(Embedding):
    """The vectors times √dim, so that they match positions of unit size (Vaswani 2017; Gemma
    2024).
    """

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        x = super().forward(tokens, segments)
        return x * x.new_tensor(self.embedding_dim**0.5)


@register("embed", "segments")
class Segments(Embedding):
    """A vector for each token, and one for the segment it stands in (BERT, Devlin 2018); without
    segments, the first's.
    """

    def __init__(self, vocab: int, dim: int, *, segments: Annotated[int, Ge(1)] = 2) -> None:
        super().__init__(vocab, dim)
        self.segment = nn.Embedding(segments, dim)

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        return super().forward(tokens) + (
            self.segment.weight[0] if segments is None else self.segment(segments)
        )
