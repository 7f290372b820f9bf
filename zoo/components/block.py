"""A block: how the sublayers of one layer are put together.

Wiring: the sublayers by name, and a function that wraps one in its residual. Shapes: (B, Q, dim) -> (B, Q, dim).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from zoo.context import Context
from zoo.registry import register


@register("block", "serial")
class Serial(nn.Module):
    """One sublayer after the other, each in its residual (Vaswani 2017)."""

    def __init__(self, sublayers: Mapping[str, nn.Module], wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        for name, sublayer in sublayers.items():
            self.add_module(name, wrap(sublayer))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        sublayers: Any = self._modules.values()  # as children() gives them, without its search for repeats
        for sublayer in sublayers:
            x = sublayer(x, context)
        return x
