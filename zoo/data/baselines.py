"""Measures what simple models reach on the same text: baselines for a model's loss."""

from __future__ import annotations

import lzma
from collections.abc import Iterable

import numpy as np

BYTES = 256
# A loss above this fraction of the unigram loss: the model has learned token frequencies only.
STUCK = 0.98


def baseline_bits(train: Iterable[bytes], text: bytes) -> dict[str, float]:
    """Bits per byte of `text` under three simple models; `train` comes in pieces.

    With c the counts in `train`, n its length and b the bytes of `text`, each is the mean over
    `text` of -log2 p:
    unigram: p(b) = (c[b] + 1) / (n + 256).
    bigram: p(b | a) = (c[a, b] + 1) / (c[a, any] + 256), with a the byte before; the first byte by
    the unigram.
    xz: 8 * len(lzma.compress(text)) / len(text), preset 9 | extreme, container included; `train`
    plays no part.
    All are nan for an empty text.
    """
    if not text:
        return dict.fromkeys(("unigram", "bigram", "xz"), float("nan"))
    unigrams = np.zeros(BYTES, np.int64)
    bigrams = np.zeros(BYTES**2, np.int64)
    before = b""
    for piece in train:
        unigrams += np.bincount(np.frombuffer(piece, np.uint8), minlength=BYTES)
        pairs = _pairs(np.frombuffer(before + piece, np.uint8))
        bigrams += np.bincount(pairs, minlength=BYTES**2)
        before = piece[-1:] or before
    letters = np.frombuffer(text, np.uint8)
    unigram_bits = _bits(unigrams)
    bigram_bits = _bits(bigrams.reshape(BYTES, BYTES)).reshape(-1)
    total = unigram_bits[letters[0]] + bigram_bits[_pairs(letters)].sum()
    return {
        "unigram": float(unigram_bits[letters].mean()),
        "bigram": float(total / len(letters)),
        "xz": 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text),
    }


def unigram_nats(train_ids: np.ndarray, val_ids: np.ndarray, vocab: int) -> float:
    """Cross-entropy of `val_ids`, in nats per token, under p(i) = (c[i] + 1) / (n + vocab).

    c and n are of `train_ids`. A model that stays here has learned nothing of their order. nan when
    `val_ids` is empty.
    """
    if not len(val_ids):
        return float("nan")
    return float(_bits(np.bincount(train_ids, minlength=vocab))[val_ids].mean() * np.log(2))


def stuck(loss: float, unigram: float | None) -> bool:
    """Whether a model is no better than the unigram baseline; False where that does not apply."""
    # A loss of nan is stuck, too.
    return unigram is not None and not loss <= STUCK * unigram


def _bits(counts: np.ndarray) -> np.ndarray:
    """-log2 of the add-one smoothed frequencies along the last axis."""
    smooth = counts + 1.0
    return np.log2(smooth.sum(-1, keepdims=True)) - np.log2(smooth)


def _pairs(letters: np.ndarray) -> np.ndarray:
    """Each byte and its successor as one number, first * 256 + second."""
    return letters[:-1].astype(np.uint16) * BYTES + letters[1:]
