"""Position information. Wiring: dim, heads, the width of what attention rotates, the length trained
on, whether it is causal.

A position has three hooks, each with one caller (the stack): `embed` adds to the embeddings,
`rotate` gives the function that turns queries and keys, `bias` is added to the scores. By default
each does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from zoo.context import unchanged
from zoo.errors import ZooError
from zoo.registry import Component, build, register


@register("pos", "none")
class Position(nn.Module):
    """No position information: without a mask, attention cannot tell one order of the tokens from
    another.
    """

    limit: int | None = None  # the most tokens it can place, where there is a limit

    def __init__(self, dim: int, heads: int, width: int, length: int, causal: bool) -> None:
        super().__init__()

    @classmethod
    def asks(cls) -> list[str]:
        """What it asks of a mixer (zoo.nn.mixer.HONOURED): those of its hooks that do something."""
        hooks = {
            "rotate": cls.rotate is not Position.rotate,
            "bias": cls.bias is not Position.bias,
        }
        return [hook for hook, overridden in hooks.items() if overridden]

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (B, Q, dim) and positions (1 or B, Q) -> (B, Q, dim)."""
        return x

    def rotate(self, positions: Tensor) -> Callable[[Tensor], Tensor]:
        """The function that turns (B, H, Q, width) at these positions; its angles are computed once
        a forward.
        """
        return unchanged

    def bias(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """What is added to the scores of the last Q of K tokens: (1, H, Q, K), or None."""
        return None


def frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """base^(-2i/width), i from 0: (width/2), in float32 whatever the model is cast to."""
    return 1 / base ** (torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)


def distance(queries: int, keys: int, device: torch.device) -> Tensor:
    """How far each key is ahead of each query, of the last Q of K tokens: (Q, K)."""
    key = torch.arange(keys, device=device)
    return key - key[keys - queries :, None]


@register("pos", "sinusoidal")
class Sinusoidal(Position):
    """Sines and cosines added to the embeddings (Vaswani 2017): sin and cos of p / base^(2i/dim),
    interleaved.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        width: int,
        length: int,
        causal: bool,
        *,
        base: Annotated[float, Gt(0)] = 10_000.0,
    ) -> None:
        super().__init__(dim, heads, width, length, causal)
        if dim % 2:
            raise ZooError(f"pos=sinusoidal needs an even arch.dim, not {dim}")
        self.base = base

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[..., None].float() * frequencies(x.shape[-1], self.base, x.device)
        return x + torch.stack([angles.sin(), angles.cos()], -1).flatten(-2).to(x.dtype)


@register("pos", "learned")
class Learned(Position):
    """A learned vector for each position up to arch.length, added to the embeddings (Gehring 2017,
    GPT 2018).

    The table's first `offset` rows are never used (2 in RoBERTa and BART, whose padding once had
    them).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        width: int,
        length: int,
        causal: bool,
        *,
        offset: Annotated[int, Ge(0)] = 0,
    ) -> None:
        super().__init__(dim, heads, width, length, causal)
        self.limit, self.offset = length, offset
        self.weight = nn.Parameter(torch.empty(offset + length, dim))

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        rows = positions + self.offset if self.offset else positions
        try:
            return x + nn.functional.embedding(rows, self.weight)
        except IndexError:
            raise ZooError(
                f"a position is beyond the {self.limit} that pos=learned knows (arch.length)"
            ) from None

    def flops(self, length: int) -> int:
        return 0  # a look-up


@register("pos", "rope")
class RoPE(Position):
    """Rotary position (Su 2021): pairs of a query's or key's entries turned by position /
    base^(2i/width).

    `pairing` says which entries are a pair: i and i + width/2 (half, as in LLaMA's transformers
    weights), or 2i and 2i + 1 (interleaved, as in the paper). `fraction` turns the first part of
    the width only (partial rotary, GPT-J 2021). `scaling` (linear, ntk, yarn, llama3: see
    zoo/components/scaling.py) stretches it beyond the length trained on.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        width: int,
        length: int,
        causal: bool,
        *,
        base: Annotated[float, Gt(0)] = 10_000.0,
        pairing: Literal["half", "interleaved"] = "half",
        fraction: Annotated[float, Gt(0), Le(1)] = 1.0,
        scaling: Component = None,
    ) -> None:
        super().__init__(dim, heads, width, length, causal)
        self.base, self.pairing, self.width = base, pairing, int(width * fraction)
        # where the mixer rotates nothing, the stack refuses it
        if width and (self.width % 2 or not self.width):
            raise ZooError(
                f"pos=rope turns pairs, so the head width it turns must be even, not {self.width}"
                " (arch.dim / arch.heads, or attn.head_dim, times pos.fraction)"
            )
        self.scaling: Callable[[Tensor], Tensor] = unchanged
        self.gain = 1.0
        if scaling:
            scaler = build("scaling", scaling, self.width, base, path="pos.scaling")
            self.scaling, self.gain = scaler, scaler.gain

    def rotate(self, positions: Tensor) -> Callable[[Tensor], Tensor]:
        radians_per_token = self.scaling(frequencies(self.width, self.base, positions.device))
        angles = positions[:, None, :, None].float() * radians_per_token  # (B, 1, Q, width/2)
        cos, sin = angles.cos() * self.gain, angles.sin() * self.gain
        if self.pairing == "half":
            cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        else:
            cos = torch.stack([cos, cos], -1).flatten(-2)
            sin = torch.stack([-sin, sin], -1).flatten(-2)

        def rotate(x: Tensor) -> Tensor:
            part, rest = x[..., : self.width], x[..., self.width :]
            rotated = torch.addcmul(part * cos, self._partners(part), sin).to(x.dtype)
            return torch.cat([rotated, rest], -1) if rest.shape[-1] else rotated

        return rotate

    def _partners(self, x: Tensor) -> Tensor:
        if self.pairing == "half":
            return x.roll(self.width // 2, -1)
        return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


@register("pos", "alibi")
class ALiBi(Position):
    """A penalty on each score that grows with the distance: -slope·|i - j|, a slope a head (Press
    2021).

    The slopes of a power of two heads are 2^(-8h/heads), h from 1; another number takes those of
    the power below, then every second one of the power above.
    """

    def __init__(self, dim: int, heads: int, width: int, length: int, causal: bool) -> None:
        super().__init__(dim, heads, width, length, causal)
        power = 2 ** int(math.log2(heads))
        self.slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
        self.slopes += [2 ** (-4 * h / power) for h in range(1, 2 * power, 2)][: heads - power]

    def bias(self, queries: int, keys: int, device: torch.device) -> Tensor:
        slopes = torch.tensor(self.slopes, device=device)[None, :, None, None]
        return -slopes * distance(queries, keys, device).abs()


@register("pos", "t5")
class T5Bias(Position):
    """A learned number a head on each score, by the bucket of its distance (T5, Raffel 2019).

    Half of the buckets hold one small distance each, the others grow logarithmically up to
    `farthest`, beyond which all share the last; where a token sees both sides, each side has half
    of the buckets.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        width: int,
        length: int,
        causal: bool,
        *,
        buckets: Annotated[int, Ge(2)] = 32,
        farthest: Annotated[int, Ge(2)] = 128,
    ) -> None:
        super().__init__(dim, heads, width, length, causal)
        self.sides = 1 if causal else 2
        exact = buckets // self.sides // 2  # buckets of one distance, on each side
        if buckets % (2 * self.sides):
            raise ZooError(f"pos.buckets={buckets} must be a multiple of {2 * self.sides}")
        if farthest <= exact:
            raise ZooError(f"pos.farthest={farthest} must be above {exact}")
        self.buckets, self.farthest = buckets, farthest
        self.weight = nn.Parameter(torch.empty(buckets, heads))

    def bucket(self, ahead: Tensor) -> Tensor:
        """The bucket of a distance, in tokens that the key is ahead of the query; of any shape."""
        per_side = self.buckets // self.sides
        exact = per_side // 2
        away = -ahead.clamp(max=0) if self.sides == 1 else ahead.abs()
        logarithm = torch.log(away.clamp(min=1).float() / exact) / math.log(self.farthest / exact)
        logarithmic = exact + (logarithm * (per_side - exact)).long()
        bucket = torch.where(away < exact, away, logarithmic.clamp(max=per_side - 1))
        return bucket if self.sides == 1 else bucket + per_side * (ahead > 0)

    def bias(self, queries: int, keys: int, device: torch.device) -> Tensor:
        buckets = self.bucket(distance(queries, keys, device))
        return nn.functional.embedding(buckets, self.weight).permute(2, 0, 1)[None]

    def flops(self, length: int) -> int:
        return 0  # a look-up
