"""How a layer's sublayers are arranged.

Wiring: the sublayers by name (attn, ffn, and cross in a decoder that reads a memory), and a
function that wraps a sublayer in a residual connection. Shapes: (B, Q, dim) -> (B, Q, dim).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from zoo.context import Context
from zoo.errors import ZooError
from zoo.registry import register


class Wrap(Protocol):
    """Wraps a sublayer in a residual connection; a bare one has no norm before it."""

    def __call__(self, sublayer: nn.Module, bare: bool = False) -> nn.Module: ...


@register("block", "serial")
class Serial(nn.Module):
    """One sublayer after the other, each in its residual (Vaswani 2017).

    `bare` names sublayers without a norm, as the first of a stack whose embeddings have one
    (ModernBERT 2024).
    """

    def __init__(
        self,
        sublayers: Mapping[str, nn.Module],
        wrap: Wrap,
        *,
        bare: list[str] = [],  # noqa: B006
    ) -> None:
        super().__init__()
        for name in bare:
            if name not in ("attn", "cross", "ffn"):
                raise ZooError(
                    f"block.bare names {name!r}, which no layer has (there are: attn, cross, ffn)"
                )
        for name, sublayer in sublayers.items():
            self.add_module(name, wrap(sublayer, name in bare))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        for sublayer in self.children():
            x = sublayer(x, context)
        return x


class Sum(nn.Module):
    """Sublayers that read the same input: attn(x) + ffn(x)."""

    def __init__(self, sublayers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, sublayer in sublayers.items():
            self.add_module(name, sublayer)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        first, *others = (sublayer(x, context) for sublayer in self.children())
        return sum(others, first)


@register("block", "parallel")
class Parallel(nn.Module):
    """All sublayers side by side in one residual, x + attn(norm(x)) + ffn(norm(x)) (GPT-J 2021,
    PaLM 2022).

    Raises ZooError with a residual that normalises the sum, since the next layer's sublayers would
    not share its norm.
    """

    def __init__(self, sublayers: Mapping[str, nn.Module], wrap: Wrap) -> None:
        super().__init__()
        self.both = wrap(Sum(sublayers))
        if not getattr(self.both, "keeps_stream", True):
            raise ZooError(
                "block=parallel needs a residual that adds to x and leaves it as it is:"
                " residual=pre, sandwich,"
                " reordered or rezero"
            )

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.both(x, context)
