"""What softmax attentions share: the backends, and how heads meet keys and values. The shape legend is zoo/context.py's."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.errors import ZooError
from zoo.nn.activations import capped
from zoo.nn.mixer import HONOURED, Mixer


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
    """softmax(q·kᵀ·scale + mask)·v with the (B, H, Q, K) scores in memory; a row that sees nothing gives zeros."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = capped((q @ k.mT) * scale, softcap)
    if causal:
        mask = lower_triangle(q, k)
    if mask is not None:
        seen = mask if mask.dtype == torch.bool else mask > -torch.inf
        scores = (scores if mask is seen else scores + mask).masked_fill(
            ~seen, torch.finfo(scores.dtype).min
        )
        weights = scores.softmax(-1).masked_fill(~seen, 0)  # a row of equal minima would be uniform
    else:
        weights = scores.softmax(-1)
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
    large = (
        q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] >= WEIGHTS
        and q.is_cpu
        and not torch.compiler.is_compiling()
    )
    if (
        large
        and mask is not None
        and mask.requires_grad
        and not dropout
        and q.shape[1] == k.shape[1]
    ):
        return _LearnedBias.apply(q, k, v, mask, scale)
    gqa = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout, causal, scale=scale, enable_gqa=gqa
    )


WEIGHTS = 2**18  # of attention, from which on it pays not to keep them


class _LearnedBias(torch.autograd.Function):
    """Attention with a float mask that is learned, for which torch has no kernel on a CPU that does not keep all weights.

    The forward pass is its flash kernel; the backward pass makes the weights again, a row of the batch at a time, so that they
    are never in memory for all rows and layers, and are in the cache of the processor while they are used.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        y = F.scaled_dot_product_attention(q, k, v, bias.detach(), scale=scale)
        ctx.save_for_backward(q, k, v, bias, y)
        ctx.scale = scale
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, y = ctx.saved_tensors
        at_q, at_k, at_v, at_bias = (
            torch.empty_like(q),
            torch.empty_like(k),
            torch.empty_like(v),
            torch.zeros_like(bias),
        )
        for row, (one_q, one_k, one_v, one_y, one) in enumerate(
            zip(q, k, v, y, gradient, strict=True)
        ):
            place = row if len(bias) > 1 else 0
            weights = torch.baddbmm(
                bias[place].expand(len(one_q), -1, -1), one_q, one_k.mT, alpha=ctx.scale
            ).softmax(-1)
            weights.nan_to_num_(0.0)  # what sees nothing reads nothing
            at_v[row] = weights.mT @ one
            at_scores = (one @ one_v.mT).sub_((one * one_y).sum(-1, keepdim=True)).mul_(weights)
            at_bias[place] += at_scores.sum_to_size(bias[place].shape)
            at_q[row], at_k[row] = (
                (at_scores @ one_k).mul_(ctx.scale),
                (at_scores.mT @ one_q).mul_(ctx.scale),
            )
        return at_q, at_k, at_v, at_bias, None


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
    """torch's compiled attention (FlexAttention, Dong 2024): scores changed as they are made, in linear memory, on a GPU."""
    if not q.is_cuda:
        if torch.is_grad_enabled() and q.requires_grad:
            raise ZooError(
                "backend=flex has no gradient on this device: train with it on a GPU, or choose attn.backend=sdpa or"
                " eager (arch.cross.backend, where that is it)"
            )
        q, k, v = (x.detach() for x in (q, k, v))  # it refuses what once needed a gradient
    if causal:
        mask = lower_triangle(q, k)

    def change(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = capped(score, softcap)
        if mask is None:
            return score
        here = mask[b if mask.shape[0] > 1 else 0, h if mask.shape[1] > 1 else 0, i, j]
        return score + here if mask.is_floating_point() else torch.where(here, score, -torch.inf)

    attention: Any = _flex_attention(compiled=q.is_cuda)
    return attention(q, k, v, score_mod=change, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


@functools.cache
def _flex_attention(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    if compiled:
        return torch.compile(flex_attention, dynamic=True)
    warnings.filterwarnings(
        "ignore", "flex_attention called without torch.compile"
    )  # where compiling it fails
    return flex_attention


def lower_triangle(q: Tensor, k: Tensor) -> Tensor:
    """(1, 1, Q, K), True where a query may see a key no later than itself."""
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()[
        None, None
    ]


class FusedLinear(nn.Linear):
    """Several projections of one input as one product; each is initialised under its own name.

    `split_sizes` are the rows of each in the weight, by name.
    """

    def __init__(self, dim: int, bias: bool, **split_sizes: int) -> None:
        super().__init__(dim, sum(split_sizes.values()), bias=bias)
        self.split_sizes = split_sizes
        self.sizes = list(split_sizes.values())

    def each(self, x: Tensor) -> tuple[Tensor, ...]:
        """The projections of x, in order."""
        return self(x).split(self.sizes, -1)


BACKENDS = {"eager": eager, "sdpa": sdpa, "flex": flex}


class MultiHead(Mixer):
    """What every softmax attention shares: how its heads meet keys and values, and the projection of what they read.

    `width` is that of a head's query and key, `value_width` that of its value. Raises ZooError where the heads do not divide.
    """

    honours = frozenset(HONOURED)
    word = "attn"  # by which it is chosen, for what is refused

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int,
        width: int,
        value_width: int,
        *,
        bias: bool,
        scale: float | None,
        dropout: float,
        backend: str,
        softcap: float | None = None,
        sinks: bool = False,
        window: int | None = None,
    ) -> None:
        super().__init__()
        if heads % kv_heads:
            raise ZooError(
                f"{heads} heads cannot share {kv_heads} KV heads: arch.heads must be a multiple of"
                f" {self.word}.kv_heads"
            )
        if softcap is not None and backend == "sdpa":
            raise ZooError(
                "attn.backend=sdpa cannot cap its scores: with attn.softcap choose attn.backend=eager or flex"
            )
        if dropout and backend == "flex":
            raise ZooError(
                f"{self.word}.backend=flex has no dropout: choose {self.word}.dropout=0, or"
                f" {self.word}.backend=sdpa or eager"
            )
        self.heads, self.kv_heads, self.window = heads, kv_heads, window
        self.width, self.value_width = width, value_width
        self.scale = width**-0.5 if scale is None else scale
        self.dropout, self.softcap, self.scores = dropout, softcap, BACKENDS[backend]
        self.sinks = nn.Parameter(torch.empty(heads)) if sinks else None
        self.out = nn.Linear(heads * value_width, dim, bias=bias)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """q (B, H, Q, width), k (B, G, K, width), v (B, G, K, value width) of G kv_heads -> (B, Q, dim)."""
        if self.sinks is not None:
            mask, causal = (
                _with_sink(lower_triangle(q, k) if causal else mask, self.sinks, q, k),
                False,
            )
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        if mask is not None and mask.is_floating_point():
            mask = mask.to(q.dtype)
        y = self.scores(
            q, k, v, mask, causal, self.scale, self.dropout if self.training else 0.0, self.softcap
        )
        return self.out(y.transpose(1, 2).flatten(2))

    def cache_bytes(self, length: int, itemsize: int = 4) -> int:
        """Keys and values of each KV head and token."""
        return length * self.kv_heads * (self.width + self.value_width) * itemsize

    def mixing_flops(self, length: int) -> int:
        """Of the two products with the keys and the values, a token; counted in full, as the mask does not save them."""
        return (
            2 * (length + (self.sinks is not None)) * self.heads * (self.width + self.value_width)
        )


def _with_sink(mask: Tensor | None, sinks: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """The mask with one key more, of score `sinks` (H): (1 or B, H, Q, K + 1)."""
    shape = (1 if mask is None else mask.shape[0], q.shape[1], q.shape[2], k.shape[2])
    known = q.new_zeros(shape) if mask is None else mask.expand(shape)
    if known.dtype == torch.bool:
        known = q.new_zeros(shape).masked_fill(~known, -torch.inf)
    return torch.cat([known, sinks.to(known.dtype)[:, None, None].expand(*shape[:3], 1)], -1)


def head_width(dim: int, heads: int, head_dim: int | None, option: str = "attn.head_dim") -> int:
    """dim/heads unless given by the option of this name. Raises ZooError where that is no whole number."""
    if head_dim is None and dim % heads:
        raise ZooError(
            f"arch.dim={dim} is not a multiple of arch.heads={heads}; change one, or give {option}"
        )
    return head_dim or dim // heads


def in_heads(x: Tensor, width: int) -> Tensor:
    """(B, Q, H·D) -> (B, H, Q, D)."""
    return x.view(*x.shape[:2], -1, width).transpose(1, 2)
