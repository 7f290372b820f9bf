"""Bases of softmax attentions: heads over keys and values, and projections fused into one product.

The shape legend is that of zoo/context.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.errors import ZooError
from zoo.nn.attention_backends import BACKENDS, lower_triangle
from zoo.nn.mixer import HONOURED, Mixer


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


class MultiHead(Mixer):
    """Attends with several heads to keys and values, and projects what they read.

    `head_dim` is the size of a head's query and key, `value_dim` that of its value. Raises ZooError
    where the heads do not divide.
    """

    honours = frozenset(HONOURED)
    word = "attn"  # where it is chosen, for error messages

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int,
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
                "attn.backend=sdpa cannot cap its scores: with attn.softcap choose"
                " attn.backend=eager or flex"
            )
        if dropout and backend == "flex":
            raise ZooError(
                f"{self.word}.backend=flex has no dropout: choose {self.word}.dropout=0, or"
                f" {self.word}.backend=sdpa or eager"
            )
        self.heads, self.kv_heads, self.window = heads, kv_heads, window
        self.head_dim, self.value_dim = head_dim, value_dim
        self.scale = head_dim**-0.5 if scale is None else scale
        self.dropout, self.softcap = dropout, softcap
        self.backend = BACKENDS[backend]
        self.sinks = nn.Parameter(torch.empty(heads)) if sinks else None
        self.out = nn.Linear(heads * value_dim, dim, bias=bias)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """q (B, H, Q, head_dim), k (B, G, K, head_dim), v (B, G, K, value_dim) -> (B, Q, dim).

        G is the number of key and value heads.
        """
        if self.sinks is not None:
            mask = lower_triangle(q, k) if causal else mask
            mask, causal = _with_sink(mask, self.sinks, q, k), False
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        if mask is not None and mask.is_floating_point():
            mask = mask.to(q.dtype)
        dropout = self.dropout if self.training else 0.0
        y = self.backend(q, k, v, mask, causal, self.scale, dropout, self.softcap)
        return self.out(y.transpose(1, 2).flatten(2))

    def cache_bytes(self, length: int, itemsize: int = 4) -> int:
        """Keys and values of each KV head and token."""
        return length * self.kv_heads * (self.head_dim + self.value_dim) * itemsize

    def mixing_flops(self, length: int) -> int:
        """Of the products with the keys and the values, which a mask does not save."""
        keys = length + (self.sinks is not None)
        return 2 * keys * self.heads * (self.head_dim + self.value_dim)


def _with_sink(mask: Tensor | None, sinks: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """The mask with one key more, of score `sinks` (H): (1 or B, H, Q, K + 1)."""
    shape = (1 if mask is None else mask.shape[0], q.shape[1], q.shape[2], k.shape[2])
    bias = q.new_zeros(shape) if mask is None else mask.expand(shape)
    if bias.dtype == torch.bool:
        bias = q.new_zeros(shape).masked_fill(~bias, -torch.inf)
    column = sinks.to(bias.dtype)[:, None, None].expand(*shape[:3], 1)
    return torch.cat([bias, column], -1)


def head_size(dim: int, heads: int, head_dim: int | None, option: str = "attn.head_dim") -> int:
    """A head's size: dim/heads unless given by the option of this name.

    Raises ZooError where dim/heads is no whole number.
    """
    if head_dim is not None:
        return head_dim
    if dim % heads:
        raise ZooError(
            f"arch.dim={dim} is not a multiple of arch.heads={heads}; change one, or give {option}"
        )
    return dim // heads


def in_heads(x: Tensor, head_dim: int) -> Tensor:
    """(B, Q, H·D) -> (B, H, Q, D)."""
    return x.view(*x.shape[:2], -1, head_dim).transpose(1, 2)
