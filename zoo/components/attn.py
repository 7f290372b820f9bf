"""Attends within a sequence, with multi-head, multi-query or grouped-query softmax attention.

Wiring: dim, heads, causal. Shapes: (B, Q, dim) -> (B, Q, dim), with the legend of zoo/context.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn

from zoo.context import Context
from zoo.nn.attention import FusedLinear, MultiHead, head_size
from zoo.registry import Component, build, register

Backend = Literal["sdpa", "eager", "flex"]


@register(
    "attn", "mha", "every query head has its own key and value head (Vaswani 2017)", kv_heads=None
)
@register("attn", "mqa", "all query heads share one key and value head (Shazeer 2019)", kv_heads=1)
@register("attn", "gqa", "groups of query heads share a key and value head (Ainslie 2023)")
class Attention(MultiHead):
    """Scaled dot-product attention: softmax(q·kᵀ·scale + mask)·v over heads, then an output
    projection.

    `head_dim` defaults to dim/heads and `scale` to 1/√head_dim; `window` is how many tokens back a
    query sees, itself included (Longformer, Beltagy 2020); `qk_norm` is a norm of queries and keys
    (Henry 2020), of each head or of all of them as one (`qk_norm_over`, OLMo 2 2024); `softcap`
    bounds the scores (Gemma 2 2024); `sinks` gives each head a learned score that it can spend on
    nothing (gpt-oss 2025); `out_bias` defaults to `bias`. Raises ZooError where the heads do not
    divide.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        causal: bool,
        *,
        kv_heads: Annotated[int, Ge(1)] | None = 2,
        head_dim: Annotated[int, Ge(1)] | None = None,
        bias: bool = False,
        out_bias: bool | None = None,
        scale: Annotated[float, Gt(0)] | None = None,
        qk_norm: Component = None,
        qk_norm_over: Literal["head", "all"] = "head",
        window: Annotated[int, Ge(1)] | None = None,
        softcap: Annotated[float, Gt(0)] | None = None,
        sinks: bool = False,
        dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
        backend: Backend = "sdpa",
    ) -> None:
        head_dim = head_size(dim, heads, head_dim)
        kv_heads = heads if kv_heads is None else kv_heads
        super().__init__(
            dim,
            heads,
            kv_heads,
            head_dim,
            head_dim,
            bias=bias if out_bias is None else out_bias,
            scale=scale,
            dropout=dropout,
            backend=backend,
            softcap=softcap,
            sinks=sinks,
            window=window,
        )
        query_dim, key_dim = heads * head_dim, kv_heads * head_dim
        self.qkv = FusedLinear(dim, bias, q=query_dim, k=key_dim, v=key_dim)
        self.heads_of_qkv = [heads, kv_heads, kv_heads]
        self.q_norm = self.k_norm = None
        self.norm_over_heads = qk_norm_over == "all"
        if qk_norm:
            normed = (query_dim, key_dim) if self.norm_over_heads else (head_dim, head_dim)
            self.q_norm = build("norm", qk_norm, normed[0], path="attn.qk_norm")
            self.k_norm = build("norm", qk_norm, normed[1], path="attn.qk_norm")
        self.rotary_dim = head_dim

    def forward(self, x: Tensor, context: Context) -> Tensor:
        qkv = self.qkv(x).view(*x.shape[:2], -1, self.head_dim)  # (B, Q, H + 2G, D)
        q, k, v = torch.split_with_sizes(qkv, self.heads_of_qkv, 2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self._normed(self.q_norm, q), self._normed(self.k_norm, k)
        k, v = context.cache.update(self, context.rotate(k.transpose(1, 2)), v.transpose(1, 2))
        return self.attend(context.rotate(q.transpose(1, 2)), k, v, *context.mask(self.window))

    def _normed(self, norm: nn.Module, x: Tensor) -> Tensor:
        """x (B, Q, heads, D), normalised over each head, or over all heads as one vector."""
        if self.norm_over_heads:
            return norm(x.flatten(-2)).view_as(x)
        return norm(x)
