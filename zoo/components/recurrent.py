"""Recurrence in attention's slot. Wiring: dim, heads (it has none), causal. Shapes: (B, Q, dim) ->
(B, Q, dim).

It knows the order of its tokens by itself. Its cache is the state after the last token, of one size
at any length.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from zoo.context import Context
from zoo.nn.mixer import Mixer
from zoo.registry import register


@register(
    "attn",
    "lstm",
    "long short-term memory: c = f·c + i·g, h = o·tanh(c), gates of x and h (Hochreiter &"
    " Schmidhuber"
    " 1997; forget gate, Gers 2000)",
    cell="lstm",
)
@register(
    "attn", "rnn", "simple recurrent network: h = tanh(x·W + h·U + b) (Elman 1990)", cell="rnn"
)
class Recurrent(Mixer):
    """A recurrent cell of `hidden` units (default: dim) and a projection of its states; both ways
    where not causal.

    Each row's documents are read on their own, from a state of zeros, and padding is not read.
    """

    honours = frozenset(
        {"padding", "documents", "both_sides"}
    )  # it has no queries to rotate, and no scores to add to

    def __init__(
        self,
        dim: int,
        heads: int,
        causal: bool,
        *,
        cell: Literal["lstm", "rnn"],
        hidden: Annotated[int, Ge(1)] | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        width = dim if hidden is None else hidden
        made: Any = nn.LSTM if cell == "lstm" else nn.RNN
        self.cell = made(dim, width, bias=bias, batch_first=True, bidirectional=not causal)
        self.out = nn.Linear(width if causal else 2 * width, dim, bias=bias)
        self.parts, self.sides, self.units = (
            2 if cell == "lstm" else 1,
            1 if causal else 2,
            width,
        )  # of a state: (h, c) or h

    def cache_bytes(self, length: int, itemsize: int = 4) -> int:
        """The state after the last token."""
        return self.parts * self.sides * self.units * itemsize

    def forward(self, x: Tensor, context: Context) -> Tensor:
        plain = context.padding is None and context.documents is None

        def read(state: Tensor | None) -> tuple[Tensor, Tensor]:
            return (
                self._read(x, state)
                if plain
                else self._read_apart(x, state, context.tokens, context.documents)
            )

        return self.out(context.cache.swap(self, read))

    def _read(self, x: Any, state: Tensor | None) -> tuple[Any, Tensor]:
        """x (B, Q, dim) or packed sequences, state (parts, sides, B, units) -> what it gives for
        each token, and the next.
        """
        pair = self.parts == 2
        y, after = self.cell(x, state if state is None else tuple(state) if pair else state[0])
        return y, torch.stack(after) if pair else after[None]

    def _read_apart(
        self, x: Tensor, state: Tensor | None, tokens: Tensor | None, documents: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The same, with the tokens of each document of each row as a sequence of its own. Padding
        gives zeros.
        """
        here = (
            torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if tokens is None else tokens
        )
        before = x.new_zeros(self.parts, self.sides, len(x), self.units) if state is None else state
        if not here.any():
            return x.new_zeros(*x.shape[:2], self.out.in_features), before
        row = torch.arange(len(x), device=x.device)[:, None].expand_as(here)
        where = torch.stack([row, row if documents is None else documents])[
            :, here
        ]  # of each token
        (rows, _), segment = where.unique(dim=1, return_inverse=True)
        order = segment.argsort(stable=True)
        packed = pack_sequence(
            x[here][order].split(segment.bincount().tolist()), enforce_sorted=False
        )
        y, after = self._read(packed, before[:, :, rows])
        read = torch.cat(unpack_sequence(y))[order.argsort()]
        after = before.to(after.dtype).index_copy(
            2, rows, after
        )  # what is cached has one document a row
        return read.new_zeros(*x.shape[:2], self.out.in_features).index_put((here,), read), after
