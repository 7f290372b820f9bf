"""Checks what must hold of any tokenizer and any source of text."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from zoo import registry
from zoo.conformance.decoder_parts import expect
from zoo.conformance.tiny import Case
from zoo.data import tokenizers

TRAINING = ["the cat sat on the mat\n" * 20, "def f(x):\n    return x + 1\n" * 20]
EOT = tokenizers.EOT


def odd_texts() -> list[str]:
    """Texts that tokenizers lose: empty ones, NUL, the name of a special token, any character there
    is.
    """
    draw = random.Random(0)
    characters = [*range(0xD800), *range(0xE000, 0x110000)]
    drawn = ["".join(map(chr, draw.choices(characters, k=200))) for _ in range(20)]
    return ["", " ", "\n", "\x00", "\r\n\u2028é\U0001f600", EOT, f"a{EOT}b{EOT}", *drawn]


def trained(case: Case) -> Any:
    tokenizer = registry.build("tokenizer", case[1])
    tokenizer.train(TRAINING)
    return tokenizer


def no_text_is_lost(case: Case) -> None:
    """Any text comes back from its ids, and its bytes are counted."""
    tokenizer, texts = trained(case), odd_texts()
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        expect(tokenizer.decode_bytes(ids) == text.encode(), f"{text[:20]!r} does not come back")
        counted = int(tokenizer.byte_lengths()[ids].sum())
        expect(counted == len(text.encode()), f"{text[:20]!r} is counted as {counted} bytes")


def ids_are_in_the_vocabulary(case: Case) -> None:
    """No id leaves the vocabulary, and no text becomes the end-of-text token."""
    tokenizer = trained(case)
    ids = np.concatenate(tokenizer.encode_batch(odd_texts()))
    expect(ids.min() >= 0 and ids.max() < tokenizer.vocab, f"ids from {ids.min()} to {ids.max()}")
    expect(tokenizer.eot not in ids, "a text contains the end-of-text token")
    expect(tokenizer.byte_lengths().shape == (tokenizer.vocab,), "byte_lengths is not one per id")


def tokenizer_is_saved_and_loaded(case: Case) -> None:
    """A tokenizer comes back from what it dumps."""
    tokenizer = trained(case)
    again = tokenizers.loads(tokenizer.dumps())
    expect(again.dumps() == tokenizer.dumps(), "it dumps something else after loading")
    pairs = zip(again.encode_batch(TRAINING), tokenizer.encode_batch(TRAINING), strict=True)
    expect(all(np.array_equal(one, other) for one, other in pairs), "it gives other ids")


def fingerprint_repeats(case: Case) -> None:
    """The fingerprint is the same when it is asked for again, by another object too."""
    one, other = (registry.build("data", case[1]) for _ in range(2))
    expect(one.fingerprint() == one.fingerprint() == other.fingerprint(), "it changes")


def splits_are_apart(case: Case) -> None:
    """No document stands in two splits, each reading gives the same, and the bytes are counted."""
    splits = registry.build("data", case[1]).splits()
    known: dict[str, str] = {}
    for split in ("train", "val", "test"):
        size = 0
        for row in splits.documents[split]:
            size += len(row["text"].encode())
            before = known.setdefault(row["id"], split)
            apart = before == split or splits.cuts is not None
            expect(apart, f"document {row['id']!r} is in {before} and in {split}")
        expect(
            size == splits.bytes[split], f"{split} has {size:,} bytes, not {splits.bytes[split]:,}"
        )
    expect(splits.bytes["train"], "there is no text to train on")


TOKENIZER_CHECKS = (no_text_is_lost, ids_are_in_the_vocabulary, tokenizer_is_saved_and_loaded)
SOURCE_CHECKS = (fingerprint_repeats, splits_are_apart)
