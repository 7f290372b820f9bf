"""Position information. Wiring: dim, heads, the width of what attention rotates, and the length trained on.

A position has three hooks, each with one caller (the stack): `embed` adds to the embeddings, `rotate` gives the function
that turns queries and keys, `bias` is added to the scores. By default each does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from zoo.context import unchanged
from zoo.registry import ZooError, register


@register("pos", "none")
class Position(nn.Module):
    """No position information: without a mask, attention cannot tell one order of the tokens from another."""

    limit: int | None = None  # the most tokens it can place, where there is a limit

    def __init__(self, dim: int, heads: int, width: int, length: int) -> None:
        super().__init__()

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, Q, dim) and positions (1 or B, Q) -> (B, Q, dim)."""
        return x

    def rotate(self, positions: Tensor) -> Callable[[Tensor], Tensor]:
        """The function that turns (B, H, Q, width) at these positions; its angles are computed once a forward."""
        return unchanged

    def bias(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """What is added to the scores of the last Q of K tokens: (H, Q, K), or None."""
        return None


def angles(positions: Tensor, width: int, base: float) -> Tensor:
    """positions (B, Q) times base^(-2i/width): (B, Q, width/2), in float32 whatever the model is cast to."""
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    return positions[..., None].float() * base**-exponents


@register("pos", "sinusoidal")
class Sinusoidal(Position):
    """Sines and cosines added to the embeddings (Vaswani 2017): sin and cos of p / base^(2i/dim), interleaved."""

    def __init__(self, dim: int, heads: int, width: int, length: int, *, base: float = 10_000.0) -> None:
        super().__init__(dim, heads, width, length)
        if dim % 2:
            raise ZooError(f"pos=sinusoidal needs an even arch.dim, not {dim}")
        if base <= 0:
            raise ZooError(f"pos.base must be above 0, not {base}")
        self.base = base

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        turns = angles(positions, x.shape[-1], self.base)
        return x + torch.stack([turns.sin(), turns.cos()], -1).flatten(-2).to(x.dtype)


@register("pos", "learned")
class Learned(Position):
    """A learned vector for each position up to arch.length, added to the embeddings (Gehring 2017, GPT 2018)."""

    def __init__(self, dim: int, heads: int, width: int, length: int) -> None:
        super().__init__(dim, heads, width, length)
        self.limit = length
        self.weight = nn.Parameter(torch.empty(length, dim))

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        try:
            return x + nn.functional.embedding(positions, self.weight)
        except IndexError:
            raise ZooError(f"a position is beyond the {self.limit} that pos=learned knows (arch.length)") from None

    def flops(self, length: int) -> int:
        return 0  # a look-up


@register("pos", "rope")
class RoPE(Position):
    """Rotary position (Su 2021): pairs of a query's or key's entries turned by position / base^(2i/width).

    `pairing` says which entries are a pair: i and i + width/2 (half, as in LLaMA's transformers weights), or 2i and 2i + 1
    (interleaved, as in the paper). `fraction` turns the first part of the width only (partial rotary, GPT-J 2021).
    """

    def __init__(self, dim: int, heads: int, width: int, length: int, *, base: float = 10_000.0,
                 pairing: Literal["half", "interleaved"] = "half", fraction: float = 1.0) -> None:
        super().__init__(dim, heads, width, length)
        if not 0 < fraction <= 1:
            raise ZooError(f"pos.fraction must be above 0 and at most 1, not {fraction}")
        if base <= 0:
            raise ZooError(f"pos.base must be above 0, not {base}")
        self.base, self.pairing, self.width = base, pairing, int(width * fraction)
        if self.width % 2 or not self.width:
            raise ZooError(f"pos=rope turns pairs, so the head width it turns must be even, not {self.width}"
                           " (arch.dim / arch.heads, or attn.head_dim, times pos.fraction)")

    def rotate(self, positions: Tensor) -> Callable[[Tensor], Tensor]:
        turns = angles(positions, self.width, self.base)[:, None]  # (B, 1, Q, width/2)
        cos, sin = turns.cos(), turns.sin()
        if self.pairing == "half":
            cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        else:
            cos, sin = torch.stack([cos, cos], -1).flatten(-2), torch.stack([-sin, sin], -1).flatten(-2)

        def turn(x: Tensor) -> Tensor:
            part = x[..., : self.width]
            turned = torch.addcmul(part * cos, self._partners(part), sin).to(x.dtype)
            return turned if self.width == x.shape[-1] else torch.cat([turned, x[..., self.width :]], -1)

        return turn

    def _partners(self, x: Tensor) -> Tensor:
        if self.pairing == "half":
            return x.roll(self.width // 2, -1)
        return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
