"""What stands in attention's slot: its base class, by which a mixer says what it honours and what it keeps.

Nobody asks a mixer for its kind. What a mixer would ignore is refused here, by these declarations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from zoo.errors import ZooError

HONOURED = {  # what a mixer can honour, and what is to be said of one that does not
    "rotate": "has no queries and keys to rotate, so that this pos would do nothing: choose pos=none, or one that is added to"
    " the embeddings (pos=sinusoidal, learned)",
    "bias": "has no scores to add to, so that this pos would do nothing: choose pos=none, or one that is added to the"
    " embeddings (pos=sinusoidal, learned)",
    "padding": "reads padding as if it were text: give it sequences of one length, or choose attn=mha",
    "documents": "does not keep documents apart: choose loader.isolate=false, or attn=mha",
    "both_sides": "reads earlier tokens only: choose arch=decoder, or attn=mha",
}


class Mixer(nn.Module):
    """Wiring: dim, heads, causal. Shapes: (B, Q, dim) -> (B, Q, dim), with the shape legend of zoo/context.py.

    `honours` names those of HONOURED that change what it gives: the rotation and the bias of a position, the masks of padding
    and of documents, and the later tokens where it is not causal. `rotary_dim` is the width that a position rotates.
    """

    honours: frozenset[str] = frozenset()
    rotary_dim: int = 0

    def cache_bytes(self, length: int, itemsize: int = 4) -> int:
        """What a cache holds of one sequence of `length` tokens, at `itemsize` bytes a number: nothing, unless it says so.

        That of no tokens is kept for the sequence, as a recurrent state; the rest is kept for its tokens.
        """
        return 0


def refuse_ignored(asked: Iterable[str], mixers: Mapping[str, Iterable[str]]) -> None:
    """Raise ZooError where one of these mixers, by name with what it honours, would ignore something that is asked of it."""
    for what in asked:
        for name, honours in mixers.items():
            if what not in honours:
                raise ZooError(f"attn={name} {HONOURED[what]}")
