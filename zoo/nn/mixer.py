"""Base class of a mixer, which stands in attention's slot and declares what it honours, keeps and
costs.

Nobody asks a mixer for its kind. By these declarations, what a mixer would ignore is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from zoo.errors import ZooError

# what a mixer can honour, and the error about one that does not
HONOURED = {
    "rotate": "has no queries and keys to rotate, so that this pos would do nothing: choose"
    " pos=none, or one that is added to the embeddings (pos=sinusoidal, learned)",
    "bias": "has no scores to add to, so that this pos would do nothing: choose pos=none, or one"
    " that is added to the embeddings (pos=sinusoidal, learned)",
    "padding": "reads padding as if it were text: give it sequences of one length, or choose"
    " attn=mha",
    "documents": "does not keep documents apart: choose loader.isolate=false, or attn=mha",
    "both_sides": "reads earlier tokens only: choose arch=decoder, or attn=mha",
}


class Mixer(nn.Module):
    """Wiring: dim, heads, causal. Shapes: (B, Q, dim) -> (B, Q, dim), see zoo/context.py.

    `honours` names those of HONOURED that change its output: the rotation and the bias of a
    position, the masks of padding and of documents, and, where it is not causal, the later tokens.
    `rotary_dim` is how much of a head a position rotates; `window` is how many tokens back it
    reads, each token itself included, if it has such a limit.
    """

    honours: frozenset[str] = frozenset()
    rotary_dim: int = 0
    window: int | None = None

    def cache_bytes(self, length: int, itemsize: int = 4) -> int:
        """Bytes that a cache keeps of one sequence of `length` tokens, at `itemsize` per number.

        With no tokens it is the size of what is kept per sequence, as a recurrent state.
        """
        return 0

    def mixing_flops(self, length: int) -> int:
        """FLOPs per token in a sequence of this length, beside the products with its matrices."""
        return 0


def refuse_ignored(asked: Iterable[str], mixers: Mapping[str, Iterable[str]]) -> None:
    """Raise ZooError where a mixer would ignore something that is asked of it.

    `mixers` are what each honours, by its name.
    """
    for feature in asked:
        for name, honours in mixers.items():
            if feature not in honours:
                raise ZooError(f"attn={name} {HONOURED[feature]}")
