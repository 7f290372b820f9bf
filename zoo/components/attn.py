"""Attention. Wiring: dim, heads. Shapes: (B, Q, dim) -> (B, Q, dim), with the shape legend of zoo/context.py."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.context import Context, unchanged
from zoo.registry import Component, ZooError, build, register


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float) -> Tensor:
    """softmax(q·kᵀ·scale + mask)·v with the (B, H, Q, K) scores in memory; a row that sees nothing gives zeros."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT) * scale
    if causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        seen = mask if mask.dtype == torch.bool else mask > -torch.inf
        scores = (scores if mask is seen else scores + mask).masked_fill(~seen, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1).masked_fill(~seen, 0)  # a row of equal minima would be uniform
    else:
        weights = scores.softmax(-1)
    return F.dropout(weights, dropout) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float) -> Tensor:
    """torch's fused attention: memory linear in the length wherever its flash kernels serve."""
    gqa = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=gqa)


class Joined(nn.Linear):
    """Several projections of one input as one product. Each has its rows of the weight, drawn under its own name."""

    def __init__(self, dim: int, bias: bool, **rows: int) -> None:
        super().__init__(dim, sum(rows.values()), bias=bias)
        self.rows = rows


BACKENDS = {"eager": eager, "sdpa": sdpa}


@register("attn", "mha", "every query head has its own key and value head (Vaswani 2017)", kv_heads=None)
@register("attn", "mqa", "all query heads share one key and value head (Shazeer 2019)", kv_heads=1)
@register("attn", "gqa", "groups of query heads share a key and value head (Ainslie 2023)")
class Attention(nn.Module):
    """Scaled dot-product attention: softmax(q·kᵀ·scale + mask)·v over heads, then an output projection.

    `head_dim` defaults to dim/heads and `scale` to 1/√head_dim; `window` is how many tokens back a query sees, itself
    included (Longformer, Beltagy 2020); `qk_norm` is a norm of queries and keys (Henry 2020). Raises ZooError where the
    heads do not divide.
    """

    def __init__(self, dim: int, heads: int, *, kv_heads: int | None = 2, head_dim: int | None = None, bias: bool = False,
                 scale: float | None = None, qk_norm: Component = None, window: int | None = None,
                 dropout: float = 0.0, backend: Literal["sdpa", "eager"] = "sdpa") -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if kv_heads < 1 or heads % kv_heads:
            raise ZooError(f"{heads} heads cannot share {kv_heads} KV heads: arch.heads must be a multiple of attn.kv_heads")
        if head_dim is None and dim % heads:
            raise ZooError(f"arch.dim={dim} is not a multiple of arch.heads={heads}; change one, or give attn.head_dim")
        if not 0 <= dropout < 1:
            raise ZooError(f"attn.dropout must be from 0 to below 1, not {dropout}")
        if window is not None and window < 1:
            raise ZooError(f"attn.window must be at least 1 (a token sees itself), not {window}")
        if scale is not None and scale <= 0:
            raise ZooError(f"attn.scale must be above 0, not {scale}")
        if head_dim is not None and head_dim < 1:
            raise ZooError(f"attn.head_dim must be at least 1, not {head_dim}")
        self.heads, self.head_dim, self.window = heads, head_dim or dim // heads, window
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.dropout, self.attend = dropout, BACKENDS[backend]
        self.parts = (heads, kv_heads, kv_heads)
        self.qkv = Joined(dim, bias, q=heads * self.head_dim, k=kv_heads * self.head_dim, v=kv_heads * self.head_dim)
        self.q_norm = build("norm", qk_norm, self.head_dim) if qk_norm else unchanged
        self.k_norm = build("norm", qk_norm, self.head_dim) if qk_norm else unchanged
        self.out = nn.Linear(heads * self.head_dim, dim, bias=bias)

    @property
    def rotary_dim(self) -> int:
        """The width that position rotates."""
        return self.head_dim

    def forward(self, x: Tensor, context: Context) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2).split(self.parts, 1)  # (B, H, Q, D)
        q, k = context.rotate(self.q_norm(q)), context.rotate(self.k_norm(k))
        k, v = context.cache.update(self, k, v)
        mask, causal = context.mask(self.window)
        if mask is not None and mask.is_floating_point():
            mask = mask.to(q.dtype)
        y = self.attend(q, k, v, mask, causal, self.scale, self.dropout if self.training else 0.0)
        return self.out(y.transpose(1, 2).flatten(2))

    def mixing_flops(self, length: int) -> int:
        """Of the two products with the keys and the values, a token; counted in full, as the mask does not save them."""
        return 4 * length * self.heads * self.head_dim
