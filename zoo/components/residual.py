"""The residual connection: wraps a sublayer and owns its norms.

Wiring: the sublayer, a function that makes a norm, the dropout rate, and the depth of the stack.
Shapes: (B, Q, dim) -> (B, Q, dim).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.context import Context, unchanged
from zoo.registry import register


class Depth(NamedTuple):
    """How many residual connections a stack has, and how many the stack that reads its output has
    (0: there is none).
    """

    residuals: int
    reader: int = 0


class Residual(nn.Module):
    """What every residual shares.

    `keeps_stream` says that x itself goes through unchanged; then the stack ends with a norm
    (`closing_norm`), unless there are none at all.
    """

    keeps_stream = closing_norm = True

    def __init__(
        self, sublayer: nn.Module, norm: Callable[[], nn.Module], dropout: float, depth: Depth
    ) -> None:
        super().__init__()
        self.depth = depth
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

    keeps_stream = closing_norm = False

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.norm(x + self.dropout(self.sublayer(x, context)))


@register("residual", "reordered")
class Reordered(Residual):
    """x + norm(f(x)): the norm bounds what each sublayer adds (Swin V2, Liu 2021; OLMo 2 2024)."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x + self.dropout(self.norm(self.sublayer(x, context)))


@register("residual", "sandwich")
class Sandwich(Residual):
    """x + norm₂(f(norm₁(x))): a norm on either side (CogView, Ding 2021; Gemma 2 2024; Peri-LN, Kim
    2025).
    """

    def __init__(
        self, sublayer: nn.Module, norm: Callable[[], nn.Module], dropout: float, depth: Depth
    ) -> None:
        super().__init__(sublayer, norm, dropout, depth)
        self.out_norm = norm()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x + self.dropout(self.out_norm(self.sublayer(self.norm(x), context)))


@register("residual", "deepnorm")
class DeepNorm(Residual):
    """norm(α·x + f(x)) with α from the depth (DeepNet, Wang 2022), made for init=deepnorm.

    A stack of R residuals has α = R^¼ and initial gain β = (4R)^-¼; an encoder of N layers that a
    decoder of M layers reads has α = .81·(N⁴M)^¹⁄₁₆ and β = .87·(N⁴M)^-¹⁄₁₆.
    """

    keeps_stream = closing_norm = False

    def __init__(
        self, sublayer: nn.Module, norm: Callable[[], nn.Module], dropout: float, depth: Depth
    ) -> None:
        super().__init__(sublayer, norm, dropout, depth)
        if depth.reader:
            both = (depth.residuals / 2) ** 4 * depth.reader / 3
            self.alpha, self.gain = 0.81 * both ** (1 / 16), 0.87 * both ** (-1 / 16)
        else:
            self.alpha, self.gain = depth.residuals**0.25, (4 * depth.residuals) ** -0.25

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.norm(self.alpha * x + self.dropout(self.sublayer(x, context)))


@register("residual", "rezero")
class ReZero(Residual):
    """x + α·f(x), without a norm; α is learned and starts at 0, so that the stack starts as the
    identity (Bachlechner 2020).
    """

    closing_norm = False

    def __init__(
        self, sublayer: nn.Module, norm: Callable[[], nn.Module], dropout: float, depth: Depth
    ) -> None:
        super().__init__(sublayer, nn.Identity, dropout, depth)
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x + self.alpha * self.dropout(self.sublayer(x, context))
