"""Stores the tokens of a split: its ids in one file, and where each document starts in another."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Tokens:
    """The tokens of one split.

    `ids` (tokens,) holds each document as end-of-text and then its tokens: end-of-text starts a
    document and, as the next token, ends the one before. `starts` (documents,) says where; `bytes`
    counts those of the text.
    """

    ids: np.ndarray
    starts: np.ndarray
    bytes: int
    eot: int

    @property
    def documents(self) -> int:
        return len(self.starts)

    def __reduce__(self) -> tuple[Any, ...]:
        # Spawned workers get the name of the mapped file, not a copy of its content.
        if isinstance(self.ids, np.memmap) and self.ids.filename:
            return map_tokens, (Path(self.ids.filename), self.ids.dtype, self.bytes, self.eot)
        return Tokens, (self.ids, self.starts, self.bytes, self.eot)


def map_tokens(path: Path, dtype: np.dtype, size: int, eot: int) -> Tokens:
    """Map a split's files into memory; `size` is the number of bytes of its text."""
    # An empty file cannot be mapped.
    ids = np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
    return Tokens(ids, np.load(path.with_suffix(".starts.npy")), size, eot)


def write_tokens(path: Path, texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, int]:
    """Tokenise documents into a split's files; returns counts of documents, bytes and tokens."""
    starts, tokens, size = array("q"), 0, 0
    with path.open("wb") as file:
        for text, ids in encode_documents(texts, tokenizer):
            starts.append(tokens)
            tokens += len(ids)
            size += len(text.encode())
            file.write(ids.tobytes())
    np.save(path.with_suffix(".starts.npy"), np.array(starts, dtype=np.int64))
    return {"documents": len(starts), "bytes": size, "tokens": tokens}


def encode_documents(
    texts: Iterable[str], tokenizer: Tokenizer
) -> Iterator[tuple[str, np.ndarray]]:
    """Each text and its ids, end-of-text first, as `Tokens` holds them."""
    dtype = id_dtype(tokenizer.vocab)
    for batch in _batches(texts):
        for text, ids in zip(batch, tokenizer.encode_batch(batch), strict=True):
            yield text, np.concatenate([[tokenizer.eot], ids]).astype(dtype)


def id_dtype(vocab: int) -> np.dtype:
    """The dtype that a vocabulary's ids are stored in."""
    return np.dtype("<u2" if vocab <= 1 << 16 else "<u4")


def _batches(texts: Iterable[str], size: int = 1 << 20) -> Iterator[list[str]]:
    """Lists of texts of about `size` characters: enough for every core, few enough for memory."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += 1 + len(text)
        if characters > size:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
