"""Attends to another sequence, an encoder's output in context.memory.

Wiring: dim, heads. Shapes: (B, Q, dim) -> (B, Q, dim).
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn

from zoo.context import Context
from zoo.nn.attention import FusedLinear, MultiHead, head_size, in_heads
from zoo.registry import register

Backend = Literal["sdpa", "eager", "flex"]


@register(
    "cross", "mha", "every query head has its own key and value head (Vaswani 2017)", kv_heads=None
)
@register("cross", "mqa", "all query heads share one key and value head (Shazeer 2019)", kv_heads=1)
@register("cross", "gqa", "groups of query heads share a key and value head (Ainslie 2023)")
class CrossAttention(MultiHead):
    """Attention from the decoder's tokens to the encoder's output (Bahdanau 2014, Vaswani 2017).

    It has no position and no causal mask. With a cache, keys and values are computed once. Options
    as in attn.
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
        head_dim = head_size(dim, heads, head_dim, f"{self.word}.head_dim")
        kv_heads = heads if kv_heads is None else kv_heads
        super().__init__(
            dim,
            heads,
            kv_heads,
            head_dim,
            head_dim,
            bias=bias,
            scale=scale,
            dropout=dropout,
            backend=backend,
        )
        self.q = nn.Linear(dim, heads * head_dim, bias=bias)
        self.kv = FusedLinear(dim, bias, k=kv_heads * head_dim, v=kv_heads * head_dim)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        memory = context.memory
        assert memory is not None

        def project() -> tuple[Tensor, ...]:
            k, v = self.kv.each(memory)
            return in_heads(k, self.head_dim), in_heads(v, self.head_dim)

        k, v = context.cache.once(self, project)
        q = in_heads(self.q(x), self.head_dim)
        return self.attend(q, k, v, context.memory_mask, False)
