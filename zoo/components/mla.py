"""Attends through a latent of low rank, which is all that a cache holds (DeepSeek-V2).

Wiring: dim, heads, causal. Shapes: (B, Q, dim) -> (B, Q, dim), with the legend of zoo/context.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn

from zoo.context import Context, unchanged
from zoo.nn.attention import FusedLinear, MultiHead, head_size, in_heads
from zoo.registry import Component, build, register

Backend = Literal["sdpa", "eager", "flex"]


@register("attn", "mla")
class LatentAttention(MultiHead):
    """Multi-head latent attention (DeepSeek-V2 2024): keys and values from one latent a token, all
    that a cache holds.

    c = norm(x·W_latent) and k_rope = rotate(x·W_k_rope) are shared by the heads. A head's key is
    [c·W_k, k_rope], its value c·W_v. Its query [nope, rotate(rope)] is a projection of x, or, with
    `q_rank`, of a latent of its own, norm(x·W_q_latent). `nope_dim` and `value_dim` default to
    dim/heads, `rope_dim` to half of nope_dim (made even), `kv_rank` to 4·nope_dim (512 for 128, as
    published), `scale` to 1/√(nope_dim + rope_dim). `norm` is that of the latents; `bias` is of the
    projections of x and of `out`. The published weights rotate interleaved pairs (pos.pairing).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        causal: bool,
        *,
        kv_rank: Annotated[int, Ge(1)] | None = None,
        q_rank: Annotated[int, Ge(1)] | None = None,
        nope_dim: Annotated[int, Ge(1)] | None = None,
        rope_dim: Annotated[int, Ge(1)] | None = None,
        value_dim: Annotated[int, Ge(1)] | None = None,
        norm: Component = "rms",
        bias: bool = False,
        scale: Annotated[float, Gt(0)] | None = None,
        window: Annotated[int, Ge(1)] | None = None,
        dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
        backend: Backend = "sdpa",
    ) -> None:
        nope = head_size(dim, heads, nope_dim, "attn.nope_dim")
        rope = max(2, nope // 4 * 2) if rope_dim is None else rope_dim
        value = head_size(dim, heads, value_dim, "attn.value_dim")
        rank = 4 * nope if kv_rank is None else kv_rank
        super().__init__(
            dim,
            heads,
            heads,
            nope + rope,
            value,
            bias=bias,
            scale=scale,
            dropout=dropout,
            backend=backend,
            window=window,
        )
        # position rotates the second part of a query and a key
        self.nope_dim, self.rotary_dim = nope, rope
        query_dim = heads * self.head_dim
        queries = {"q": query_dim} if q_rank is None else {"q_latent": q_rank}
        self.down = FusedLinear(dim, bias, **queries, latent=rank, k_rope=rope)
        self.up = nn.Linear(rank, heads * (nope + value), bias=False)
        self.q = unchanged if q_rank is None else nn.Linear(q_rank, query_dim, bias=False)
        self.q_norm = unchanged if q_rank is None else build("norm", norm, q_rank, path="attn.norm")
        self.kv_norm = build("norm", norm, rank, path="attn.norm")

    def cache_bytes(self, length: int, itemsize: int = 4) -> int:
        """The latent and the rotated key of each token, which all heads share."""
        return length * (self.up.in_features + self.rotary_dim) * itemsize

    def forward(self, x: Tensor, context: Context) -> Tensor:
        q, latent, k_rope = self.down.each(x)
        q = in_heads(self.q(self.q_norm(q)), self.head_dim)
        q_nope, q_rope = q.split([self.nope_dim, self.rotary_dim], -1)
        latent, k_rope = context.cache.update(
            self, self.kv_norm(latent)[:, None], context.rotate(k_rope[:, None])
        )
        kv = in_heads(self.up(latent[:, 0]), self.nope_dim + self.value_dim)
        k_nope, v = kv.split([self.nope_dim, self.value_dim], -1)
        k = torch.cat([k_nope, k_rope.expand(-1, self.heads, -1, -1)], -1)
        q = torch.cat([q_nope, context.rotate(q_rope)], -1)
        return self.attend(q, k, v, *context.mask(self.window))
