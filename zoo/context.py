"""What travels beside x through a forward pass: positions, what may be seen, the cache, encoder
memory, the trace.

Shape legend: B batch, Q queries (the tokens of this call), K keys (those in the cache, then the
queries), M tokens of the encoder's memory, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


class NoCache:
    """The null form of a cache: it holds nothing and returns its inputs."""

    length = 0
    padding: Tensor | None = None

    def update(self, owner: nn.Module, *new: Tensor) -> tuple[Tensor, ...]:
        return new

    def once(self, owner: nn.Module, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """What does not change while the cache grows, as the keys and values of an encoder's
        memory: made at first use.
        """
        return make()

    def swap(
        self, owner: nn.Module, new: Callable[[Tensor | None], tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Let `new` turn the state that the owner kept last (None at first) into an output and the
        next state.
        """
        return new(None)[0]

    def advance(self, tokens: int, padding: Tensor | None) -> None:
        pass


class Cache(NoCache):
    """Keys and values (or whatever a mixer keeps) of the tokens seen so far, in buffers of
    `capacity` tokens.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.buffers: dict[nn.Module, list[Tensor]] = {}
        self.fixed: dict[nn.Module, tuple[Tensor, ...]] = {}
        self.states: dict[nn.Module, Tensor] = {}

    def update(self, owner: nn.Module, *new: Tensor) -> tuple[Tensor, ...]:
        """Append tensors of shape (..., Q, D) along their second-last dimension; return all K of
        them as views.
        """
        end = self.length + new[0].shape[-2]
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens, and {end} were given")
        if owner not in self.buffers:
            self.buffers[owner] = [
                x.new_empty(*x.shape[:-2], self.capacity, x.shape[-1]) for x in new
            ]
        for buffer, x in zip(self.buffers[owner], new, strict=True):
            buffer[..., self.length : end, :] = x
        return tuple(buffer[..., :end, :] for buffer in self.buffers[owner])

    def once(self, owner: nn.Module, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if owner not in self.fixed:
            self.fixed[owner] = make()
        return self.fixed[owner]

    def swap(
        self, owner: nn.Module, new: Callable[[Tensor | None], tuple[Tensor, Tensor]]
    ) -> Tensor:
        output, self.states[owner] = new(self.states.get(owner))
        return output

    def advance(self, tokens: int, padding: Tensor | None) -> None:
        self.length += tokens
        self.padding = padding

    @property
    def nbytes(self) -> int:
        """What it holds for the mixers, in buffers of its whole capacity."""
        kept = [*self.buffers.values(), *self.fixed.values(), self.states.values()]
        return sum(tensor.nbytes for tensors in kept for tensor in tensors)


def unchanged(x: Tensor) -> Tensor:
    return x


class Trace:
    """What a forward pass leaves for the training step.

    losses are auxiliary ones, each summed over its tokens · loads say how many tokens each expert
    of a router was given. It is no dataclass, since FSDP2 hands a block copies of those that hold
    tensors, and what is written there would be lost.
    """

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.loads: list[tuple[nn.Module, Tensor]] = []


@dataclass
class Context:
    """One forward pass of one stack, as its sublayers see it.

    positions (1 or B, Q) · padding (B, K), True where there is a token · documents (B, K), equal
    within a document · rotate turns queries and keys of shape (B, H, Q, D) · bias (1 or B, H, Q, K)
    is added to the scores · memory (B, M, dim) is what an encoder made, with its padding (B, M).
    """

    positions: Tensor
    causal: bool
    keys: int
    padding: Tensor | None = None
    documents: Tensor | None = None
    cache: NoCache = field(default_factory=NoCache)
    rotate: Callable[[Tensor], Tensor] = unchanged
    bias: Tensor | None = None
    memory: Tensor | None = None
    memory_padding: Tensor | None = None
    trace: Trace = field(default_factory=Trace)
    masks: dict[int | None, tuple[Tensor | None, bool]] = field(default_factory=dict)

    def mask(self, window: int | None = None) -> tuple[Tensor | None, bool]:
        """What the queries may see, as `(attn_mask, is_causal)` of scaled_dot_product_attention.

        The mask is None on the fast path; boolean, True where a key may be seen; or float where
        there is a bias. It is made once a forward for each window and broadcasts to (B, H, Q, K).
        """
        if window not in self.masks:
            self.masks[window] = self._combine(window)
        return self.masks[window]

    @property
    def memory_mask(self) -> Tensor | None:
        """Which tokens of the memory may be seen: (B, 1, 1, M), or None where all may."""
        return None if self.memory_padding is None else self.memory_padding[:, None, None, :]

    @property
    def tokens(self) -> Tensor | None:
        """Which of the queries are tokens: (B, Q), or None where all are."""
        return None if self.padding is None else self.padding[:, -self.positions.shape[-1] :]

    def _combine(self, window: int | None) -> tuple[Tensor | None, bool]:
        queries = self.positions.shape[-1]
        if window is not None and window >= self.keys:
            window = None
        if window is None and self.padding is None and self.documents is None and self.bias is None:
            if not self.causal or queries == 1:  # the last token sees every key
                return None, False
            if (
                queries == self.keys
            ):  # is_causal aligns the first query with the first key, so not behind a cache
                return None, True
        key = torch.arange(self.keys, device=self.positions.device)
        ahead = key - key[self.keys - queries :, None]  # (Q, K)
        seen = ahead <= 0 if self.causal else torch.ones_like(ahead, dtype=torch.bool)
        if window is not None:
            seen = seen & (ahead.abs() < window)
        seen = seen[None, None]
        if self.padding is not None:
            seen = seen & self.padding[:, None, None, :]
        if self.documents is not None:
            seen = seen & (
                self.documents[:, None, -queries:, None] == self.documents[:, None, None, :]
            )
        return (seen if self.bias is None else self.bias.masked_fill(~seen, -torch.inf)), False
