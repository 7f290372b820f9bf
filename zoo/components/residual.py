"""The residual connection: wraps a sublayer and owns its norm.

Wiring: the sublayer, a function that makes a norm, the dropout rate. Shapes: (B, Q, dim) -> (B, Q, dim).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from zoo.context import Context, unchanged
from zoo.registry import register


class Residual(nn.Module):
    """The parts every residual has; `closing_norm` says whether the stack ends with a norm of its own."""

    closing_norm = True

    def __init__(self, sublayer: nn.Module, norm: Callable[[], nn.Module], dropout: float) -> None:
        super().__init__()
        self.norm = norm()
        self.sublayer = sublayer
        self.dropout = nn.Dropout(dropout) if dropout else unchanged


@register("residual", "pre")
class PreNorm(Residual):
    """x + f(norm(x)), and one norm after the last block (GPT-2 2019; Xiong 2020)."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x + self.dropout(self.sublayer(self.norm(x), context))


@register("residual", "post")
class PostNorm(Residual):
    """norm(x + f(x)) (Vaswani 2017): hard to train in deep stacks without warm-up (Xiong 2020)."""

    closing_norm = False

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.norm(x + self.dropout(self.sublayer(x, context)))
