"""The stack: blocks, position, masks, closing norm. What its sublayers see of a forward pass is made here, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.context import Context, NoCache
from zoo.registry import Component, ZooError, build

Parts = Mapping[str, Component]  # which component of each group


def overridden(parts: Parts, changes: Mapping[str, Component]) -> dict[str, Component]:
    """These parts with some exchanged (`{norm: rms}`) or with some of their options changed (`{attn: {window: 128}}`)."""
    changed = dict(parts)
    for group, change in changes.items():
        if group not in parts:
            raise ZooError(f"arch.pattern names {group!r}, which no layer has (there are: {', '.join(parts)})")
        exchange = isinstance(change, str) or "name" in change
        changed[group] = change if exchange else {**as_mapping(parts[group]), **change}
    return changed


def as_mapping(choice: Component) -> dict[str, Any]:
    return {"name": choice} if isinstance(choice, str) else dict(choice)


class Stack(nn.Module):
    """`layers` blocks of the chosen parts; `pattern` is a list of changes to them, repeated over the depth.

    Shapes: x (B, Q, dim) -> (B, Q, dim). Layers that choose the same position share one.
    """

    def __init__(self, parts: Parts, dim: int, layers: int, heads: int, length: int, dropout: float,
                 pattern: Sequence[Mapping[str, Component]], causal: bool) -> None:  # fmt: skip
        super().__init__()
        self.causal, self.checkpointing = causal, False
        self.blocks, self.positions = nn.ModuleList(), nn.ModuleList()
        self.position_of: list[int] = []  # of each layer, an index into positions
        known: list[tuple[Component, int]] = []
        for layer in range(layers):
            chosen = overridden(parts, pattern[layer % len(pattern)]) if pattern else parts
            norm = partial(build, "norm", chosen["norm"], dim)
            attn = build("attn", chosen["attn"], dim, heads)
            sublayers = {"attn": attn, "ffn": build("ffn", chosen["ffn"], dim)}
            wrap = partial(_wrap, chosen["residual"], norm, dropout)
            self.blocks.append(build("block", chosen["block"], sublayers, wrap))
            if (chosen["pos"], attn.rotary_dim) not in known:
                known.append((chosen["pos"], attn.rotary_dim))
                self.positions.append(build("pos", chosen["pos"], dim, heads, attn.rotary_dim, length))
            self.position_of.append(known.index((chosen["pos"], attn.rotary_dim)))
        self.dropout = nn.Dropout(dropout)
        closing = any(getattr(module, "closing_norm", False) for module in self.blocks[-1].modules())
        self.norm = build("norm", parts["norm"], dim) if closing else nn.Identity()

    @property
    def limit(self) -> int | None:
        """The most tokens that every position can place, or None."""
        limits: list[Any] = [position.limit for position in self.positions]
        return min((limit for limit in limits if limit is not None), default=None)

    def forward(self, x: Tensor, padding: Tensor | None = None, positions: Tensor | None = None,
                documents: Tensor | None = None, cache: NoCache | None = None) -> Tensor:  # fmt: skip
        """padding (B, Q), True where there is a token · positions and documents (B, Q), see Context."""
        cache = cache or NoCache()
        queries, keys = x.shape[1], cache.length + x.shape[1]
        if self.limit is not None and keys > self.limit:
            raise ZooError(f"a sequence of {keys} tokens is longer than the {self.limit} that the position knows (arch.length)")
        if documents is not None and cache.length:
            raise ZooError("a cache holds one document a row: give packed documents without a cache")
        padding = _with_cached(padding, cache, x)
        if positions is None:
            places = torch.arange(keys, device=x.device)[None] if padding is None else padding.long().cumsum(1) - 1
            positions = places.clamp(min=0)[:, -queries:]
        context = Context(positions, self.causal, keys, padding, documents, cache)
        contexts = [self._placed(context, position) for position in self.positions]
        for position in self.positions:
            x = position.embed(x, positions)  # type: ignore[operator]
        x = self.dropout(x)
        for block, which in zip(self.blocks, self.position_of, strict=True):
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, contexts[which], use_reentrant=False)
            else:
                x = block(x, contexts[which])
        cache.advance(queries, padding)
        return self.norm(x)

    def _placed(self, context: Context, position: Any) -> Context:
        """This forward as the layers of one position see it."""
        bias = position.bias(context.positions.shape[-1], context.keys, context.positions.device)
        return replace(context, rotate=position.rotate(context.positions), bias=bias, masks={})


def _wrap(residual: Component, norm: Any, dropout: float, sublayer: nn.Module) -> nn.Module:
    return build("residual", residual, sublayer, norm, dropout)


def _with_cached(padding: Tensor | None, cache: NoCache, x: Tensor) -> Tensor | None:
    """The padding mask of all keys (B, K), from that of the cached ones and of these tokens; None where all are tokens."""
    if not cache.length or (padding is None and cache.padding is None):
        return padding
    batch, queries = x.shape[:2]
    before = cache.padding if cache.padding is not None else x.new_ones(batch, cache.length, dtype=torch.bool)
    now = padding if padding is not None else x.new_ones(batch, queries, dtype=torch.bool)
    return torch.cat([before, now], 1)
