"""The stack of blocks, with positions, masks and closing norm; makes the context of a forward
pass, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.components.pos import Position
from zoo.components.residual import Depth
from zoo.context import Context, NoCache, Trace, unchanged
from zoo.errors import ZooError
from zoo.nn.mixer import Mixer, refuse_ignored
from zoo.registry import Component, build

Parts = Mapping[str, Component]  # which component of each group
Changes = Mapping[str, Component]  # of some of them, in some layers


def overridden(parts: Parts, changes: Changes) -> dict[str, Component]:
    """These parts with some exchanged (`{norm: rms}`) or with some of their options changed
    (`{attn: {window: 128}}`).
    """
    if not isinstance(changes, Mapping):
        raise ZooError(
            f"arch.pattern is a list of changes like {{attn: {{window: 128}}}}, and {changes!r} is"
            f" not one"
        )
    changed = dict(parts)
    for group, change in changes.items():
        if group not in parts:
            raise ZooError(
                f"arch.pattern names {group!r}, which no layer has (there are: {', '.join(parts)})"
            )
        if not isinstance(change, str | Mapping):
            raise ZooError(
                f"arch.pattern: {group} must be a name or its options, as in {{{group}: {{...}}}},"
                f" not {change!r}"
            )
        named = isinstance(change, str) or "name" in change
        changed[group] = change if named else as_mapping(parts[group]) | as_mapping(change)
    return changed


@dataclass
class Place:
    """A position choice, the width that it rotates, and what the layers that share it honour;
    `mixer` names the first.
    """

    pos: Component
    width: int
    mixer: str
    honours: frozenset[str]


def as_mapping(choice: Component) -> dict[str, Any]:
    return {"name": choice} if isinstance(choice, str) else dict(choice)


class Stack(nn.Module):
    """`layers` blocks of the chosen parts, those of `first` changed as it says and the others by
    `pattern`, which repeats.

    `reads` is the choice of a cross-attention where the stack reads an encoder's memory, `reader`
    how many residuals the stack has that reads this one. `opening_norm` normalises the embeddings.
    Shapes: x (B, Q, dim) -> (B, Q, dim). Layers that choose the same position share one.
    """

    def __init__(
        self,
        parts: Parts,
        dim: int,
        layers: int,
        heads: int,
        length: int,
        dropout: float,
        *,
        causal: bool,
        first: Sequence[Changes] = (),
        pattern: Sequence[Changes] = (),
        opening_norm: bool = False,
        reads: Component = None,
        reader: int = 0,
    ) -> None:
        super().__init__()
        self.causal, self.checkpointing = causal, False
        self.blocks, self.positions = nn.ModuleList(), nn.ModuleList()
        self.position_of: list[int] = []  # of each layer, an index into positions
        self.honoured: dict[str, frozenset[str]] = {}  # by each mixer
        places: list[Place] = []
        if len(first) > layers:
            raise ZooError(
                f"arch.first changes {len(first)} layers, and there are {layers}: raise"
                f" arch.layers, or shorten it"
            )
        if len(first) + len(pattern) > max(layers, len(first)):
            raise ZooError(
                f"arch.pattern has {len(pattern)} changes, and there are {layers - len(first)}"
                f" layers for it:"
                " raise arch.layers, or shorten it"
            )
        each = [overridden(parts, _changes(layer, first, pattern)) for layer in range(layers)]
        feeds = [build("ffn", chosen["ffn"], dim) for chosen in each]
        depth = Depth(
            layers * (2 if reads else 1) + sum(feed is not None for feed in feeds), reader
        )
        for chosen, feed in zip(each, feeds, strict=True):
            attn: Any = build("attn", chosen["attn"], dim, heads, causal)
            name = as_mapping(chosen["attn"])["name"]
            if not isinstance(attn, Mixer):
                raise ZooError(
                    f"attn={name} must be a zoo.nn.mixer.Mixer, which says what it honours: derive"
                    f" its class from that"
                )
            self.honoured[name] = attn.honours
            cross = {"cross": build("cross", reads, dim, heads, path="arch.cross")} if reads else {}
            sublayers = {"attn": attn, **cross} | ({"ffn": feed} if feed is not None else {})
            wrap = partial(
                _wrap,
                chosen["residual"],
                partial(build, "norm", chosen["norm"], dim),
                dropout,
                depth,
            )
            self.blocks.append(build("block", chosen["block"], sublayers, wrap))
            self.position_of.append(_shared(places, chosen["pos"], name, attn))
        refuse_ignored([] if causal else ["both_sides"], self.honoured)
        for place in places:
            self.positions.append(build("pos", place.pos, dim, heads, place.width, length, causal))
            refuse_ignored(cast(Any, self.positions[-1]).asks(), {place.mixer: place.honours})
        if (
            sum(
                type(position).embed is not Position.embed for position in cast(Any, self.positions)
            )
            > 1
        ):
            raise ZooError(
                "only one position can be added to the embeddings: let arch.pattern change"
                " pos=rope, or no pos"
            )
        self.dropout = nn.Dropout(dropout) if dropout else unchanged
        limits = [
            position.limit for position in cast(Any, self.positions) if position.limit is not None
        ]
        self.limit: int | None = min(
            limits, default=None
        )  # the most tokens that every position can place
        self.opening_norm = build("norm", parts["norm"], dim) if opening_norm else nn.Identity()
        closing = any(
            getattr(module, "closing_norm", False) for module in self.blocks[-1].modules()
        )
        self.norm = build("norm", parts["norm"], dim) if closing else nn.Identity()

    def forward(
        self,
        x: Tensor,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        cache: NoCache | None = None,
        trace: Trace | None = None,
        memory: Tensor | None = None,
        memory_padding: Tensor | None = None,
    ) -> Tensor:
        """padding (B, Q), True where there is a token · positions and documents (B, Q), see
        Context, as for the others.
        """
        cache, trace = cache or NoCache(), trace or Trace()
        queries, keys = x.shape[1], cache.length + x.shape[1]
        if self.limit is not None and keys > self.limit:
            raise ZooError(
                f"a sequence of {keys} tokens is longer than the {self.limit} that the position"
                f" knows (arch.length)"
            )
        if documents is not None and cache.length:
            raise ZooError(
                "a cache holds one document a row: give packed documents without a cache"
            )
        given = {"padding": padding, "documents": documents}
        refuse_ignored([name for name, mask in given.items() if mask is not None], self.honoured)
        padding = _with_cached(padding, cache, x)
        if positions is None:
            positions = _counted(padding, cache.length, x)
        contexts = []
        for position in cast(Any, self.positions):
            x = position.embed(x, positions)
            contexts.append(
                Context(
                    positions,
                    self.causal,
                    keys,
                    padding,
                    documents,
                    cache,
                    position.rotate(positions),
                    position.bias(queries, keys, x.device),
                    memory,
                    memory_padding,
                    trace,
                )
            )
        x = self.dropout(self.opening_norm(x))
        for block, which in zip(self.blocks, self.position_of, strict=True):
            if self.checkpointing and torch.is_grad_enabled():
                x = _checkpointed(block, x, contexts[which])
            else:
                x = block(x, contexts[which])
        cache.advance(queries, padding)
        return self.norm(x)


def _checkpointed(block: nn.Module, x: Tensor, context: Context) -> Tensor:
    """Apply a block whose activations are recomputed in the backward pass; masks too, but the trace
    is written once.

    The closure must not keep the trace: its losses hold the graph, which holds the closure, and
    neither would be freed.
    """
    untraced = replace(context, trace=Trace())
    traces = [context.trace]  # of the first run; a recomputation finds none

    def run(x: Tensor) -> Tensor:
        trace = traces.pop() if traces else Trace()
        return block(x, replace(untraced, trace=trace, masks={}))

    return cast(Tensor, checkpoint(run, x, use_reentrant=False))


def _changes(layer: int, first: Sequence[Changes], pattern: Sequence[Changes]) -> Changes:
    if layer < len(first):
        return first[layer]
    return pattern[(layer - len(first)) % len(pattern)] if pattern else {}


def _shared(places: list[Place], pos: Component, name: str, mixer: Mixer) -> int:
    """Which of the places a layer has: that of a layer before it with the same position, where
    both rotate one width.
    """
    for index, place in enumerate(places):
        if place.pos == pos and (not place.width or mixer.rotary_dim in (0, place.width)):
            place.width, place.honours = (
                place.width or mixer.rotary_dim,
                place.honours | mixer.honours,
            )
            return index
    places.append(Place(pos, mixer.rotary_dim, name, mixer.honours))
    return len(places) - 1


def _wrap(
    residual: Component,
    norm: Any,
    dropout: float,
    depth: Depth,
    sublayer: nn.Module,
    bare: bool = False,
) -> nn.Module:
    return build("residual", residual, sublayer, nn.Identity if bare else norm, dropout, depth)


def _counted(padding: Tensor | None, start: int, x: Tensor) -> Tensor:
    """The positions of these tokens (1 or B, Q): counted from the first token of the row,
    wherever its padding is.
    """
    if padding is None:
        return torch.arange(start, start + x.shape[1], device=x.device)[None]
    return (padding.long().cumsum(1) - 1).clamp(min=0)[:, -x.shape[1] :]


def _with_cached(padding: Tensor | None, cache: NoCache, x: Tensor) -> Tensor | None:
    """The padding mask of all keys (B, K), from that of the cached ones and of these tokens;
    None where all are tokens.
    """
    if not cache.length or (padding is None and cache.padding is None):
        return padding
    batch, queries = x.shape[:2]
    before = (
        cache.padding
        if cache.padding is not None
        else x.new_ones(batch, cache.length, dtype=torch.bool)
    )
    now = padding if padding is not None else x.new_ones(batch, queries, dtype=torch.bool)
    return torch.cat([before, now], 1)
