"""What simple models reach on the same text: a figure without them says little."""

from __future__ import annotations

import lzma
from collections.abc import Iterable

import numpy as np

LETTERS = 256
STUCK = 0.98  # of the unigram loss, above which a model has learned no more than how often each token comes


def baseline_bits(train: Iterable[bytes], text: bytes) -> dict[str, float]:
    """Bits a byte that three simple models need for `text`; `train` comes in pieces, so that it may be large.

    With c the counts in `train`, n its length and b the bytes of `text`, each the mean over `text` of -log2 p:
    unigram: p(b) = (c[b] + 1) / (n + 256).
    bigram: p(b | a) = (c[a, b] + 1) / (c[a, any] + 256), with a the byte before; the first byte by the unigram.
    xz: 8 * len(lzma.compress(text)) / len(text), preset 9 | extreme, container included; `train` plays no part.
    All are nan for an empty text.
    """
    if not text:
        return dict.fromkeys(("unigram", "bigram", "xz"), float("nan"))
    singles, pairs, before = np.zeros(LETTERS, np.int64), np.zeros(LETTERS**2, np.int64), b""
    for piece in train:
        singles += np.bincount(np.frombuffer(piece, np.uint8), minlength=LETTERS)
        pairs += np.bincount(_pairs(np.frombuffer(before + piece, np.uint8)), minlength=LETTERS**2)
        before = piece[-1:] or before
    seen, single, pair = (
        np.frombuffer(text, np.uint8),
        _bits(singles),
        _bits(pairs.reshape(LETTERS, LETTERS)),
    )
    return {
        "unigram": float(single[seen].mean()),
        "bigram": float((single[seen[0]] + pair.reshape(-1)[_pairs(seen)].sum()) / len(seen)),
        "xz": 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text),
    }


def unigram_nats(ids_train: np.ndarray, ids_val: np.ndarray, vocab: int) -> float:
    """Cross-entropy of `ids_val`, in nats a token, under frequencies: p(i) = (c[i] + 1) / (n + vocab), with c and n
    from `ids_train`. A model that stays here has learned nothing of their order. nan when `ids_val` is empty.
    """
    if not len(ids_val):
        return float("nan")
    return float(_bits(np.bincount(ids_train, minlength=vocab))[ids_val].mean() * np.log(2))


def stuck(loss: float, unigram: float | None) -> bool:
    """Whether a model is no better than the frequencies of the tokens, as if it read no text; not where these tell nothing."""
    return (
        unigram is not None and not loss <= STUCK * unigram
    )  # so that a loss that is no number is stuck, too


def _bits(counts: np.ndarray) -> np.ndarray:
    """-log2 of the add-one smoothed shares along the last axis."""
    smooth = counts + 1.0
    return np.log2(smooth.sum(-1, keepdims=True)) - np.log2(smooth)


def _pairs(letters: np.ndarray) -> np.ndarray:
    """Each byte and its successor as one number, first * 256 + second."""
    return letters[:-1].astype(np.uint16) * LETTERS + letters[1:]
