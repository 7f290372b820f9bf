"""Attention to another sequence. Wiring: dim, heads. Shapes: (B, Q, dim) -> (B, Q, dim). Reads context.memory."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn

from zoo.context import Context
from zoo.nn.attention import FusedLinear, MultiHead, head_width, in_heads
from zoo.registry import register

Backend = Literal["sdpa", "eager", "flex"]


@register(
    "cross", "mha", "every query head has its own key and value head (Vaswani 2017)", kv_heads=None
)
@register("cross", "mqa", "all query heads share one key and value head (Shazeer 2019)", kv_heads=1)
@register("cross", "gqa", "groups of query heads share a key and value head (Ainslie 2023)")
class CrossAttention(MultiHead):
    """Attention from the decoder's tokens to the encoder's memory (Bahdanau 2014, Vaswani 2017): no position, no order.

    The memory's keys and values are made once for a cache. Options as in attn.
    """

    word = "arch.cross"

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: Annotated[int, Ge(1)] | None = 2,
        head_dim: Annotated[int, Ge(1)] | None = None,
        bias: bool = False,
        scale: Annotated[float, Gt(0)] | None = None,
        dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
        backend: Backend = "sdpa",
    ) -> None:
        width = head_width(dim, heads, head_dim, f"{self.word}.head_dim")
        kv_heads = heads if kv_heads is None else kv_heads
        super().__init__(
            dim,
            heads,
            kv_heads,
            width,
            width,
            bias=bias,
            scale=scale,
            dropout=dropout,
            backend=backend,
        )
        self.q = nn.Linear(dim, heads * width, bias=bias)
        self.kv = FusedLinear(dim, bias, k=kv_heads * width, v=kv_heads * width)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        memory = context.memory
        assert memory is not None
        k, v = context.cache.once(
            self, lambda: tuple(in_heads(y, self.width) for y in self.kv.each(memory))
        )
        return self.attend(in_heads(self.q(x), self.width), k, v, context.memory_mask, False)
