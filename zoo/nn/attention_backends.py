"""Softmax attention by three backends: plain torch (eager), its fused kernels (sdpa), and
FlexAttention (flex).

Each takes q (B, H, Q, D), k and v (B, G, K, D) of G key and value heads, and a mask as
zoo.context.Context gives it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.errors import ZooError
from zoo.nn import cpu_kernels
from zoo.nn.activations import capped


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
    softcap: float | None,
) -> Tensor:
    """softmax(q·kᵀ·scale + mask)·v with the (B, H, Q, K) scores in memory.

    A row that sees nothing gives zeros.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = capped((q @ k.mT) * scale, softcap)
    if causal:
        mask = lower_triangle(q, k)
    if mask is None:
        return F.dropout(scores.softmax(-1), dropout) @ v
    visible = mask
    if mask.is_floating_point():
        visible, scores = mask > -torch.inf, scores + mask
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~visible, lowest).softmax(-1)
    weights = weights.masked_fill(~visible, 0)  # a row of equal minima would be uniform
    return F.dropout(weights, dropout) @ v


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
    softcap: float | None,
) -> Tensor:
    """torch's fused attention: memory linear in the length wherever its flash kernels serve."""
    gqa = q.shape[1] != k.shape[1]
    if mask is not None and mask.requires_grad and not dropout and not gqa:
        scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
        if scores >= cpu_kernels.SMALLEST_SCORES and cpu_kernels.on_cpu(q):
            return cpu_kernels.LearnedBiasAttention.apply(q, k, v, mask, scale)
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout, causal, scale=scale, enable_gqa=gqa
    )


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
    softcap: float | None,
) -> Tensor:
    """torch's compiled attention (FlexAttention, Dong 2024), in linear memory on a GPU.

    Scores are capped and masked as they are made.
    """
    if not q.is_cuda:
        if torch.is_grad_enabled() and q.requires_grad:
            raise ZooError(
                "backend=flex has no gradient on this device: train with it on a GPU, or choose"
                " attn.backend=sdpa or eager (arch.cross.backend, where that is it)"
            )
        # it refuses tensors that once needed a gradient
        q, k, v = q.detach(), k.detach(), v.detach()
    if causal:
        mask = lower_triangle(q, k)

    def change(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = capped(score, softcap)
        if mask is None:
            return score
        entry = mask[b if mask.shape[0] > 1 else 0, h if mask.shape[1] > 1 else 0, i, j]
        return score + entry if mask.is_floating_point() else torch.where(entry, score, -torch.inf)

    gqa = q.shape[1] != k.shape[1]
    attention = _flex_attention(compiled=q.is_cuda)
    return attention(q, k, v, score_mod=change, scale=scale, enable_gqa=gqa)


@functools.cache
def _flex_attention(compiled: bool) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    if compiled:
        return torch.compile(flex_attention, dynamic=True)
    # where there is no GPU, and compiling it fails
    warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
    return flex_attention


def lower_triangle(q: Tensor, k: Tensor) -> Tensor:
    """(1, 1, Q, K), True where a query may see a key: one no later than itself."""
    ones = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    return ones.tril()[None, None]


BACKENDS = {"eager": eager, "sdpa": sdpa, "flex": flex}
