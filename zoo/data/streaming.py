"""Tokenises and packs text while a run trains, where it is too large to be tokenised beforehand."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from zoo.data.dataset import Batch, Blocks
from zoo.data.tokenizers import Tokenizer
from zoo.data.tokens import Tokens, encode_documents
from zoo.errors import ZooError
from zoo.utils.seeding import derive


class Stream(Dataset[Batch]):
    """Cuts documents into blocks as `Blocks` does, but tokenises them as they are read.

    A buffer takes the next `buffer` blocks of the text, is shuffled, and is emptied before it is
    filled again; a batch is asked for by the places of its blocks in that order. At the end of the
    text a smaller buffer is the epoch's last, and the text starts again. So each epoch has the
    blocks that `Blocks` would cut, each once, and where a buffer begins in the text says all that
    is in it: that place is the state. A resumed run reads the documents before it without
    tokenising them, and fills that one buffer; no token is stored in a checkpoint. `indices` are
    the numbers of the blocks since the beginning of the run, in the order of the text.

    Each of several ranks reads and tokenises the whole text, and takes its part of each batch: N
    ranks do this work N times. Raises ZooError when the text has no block.
    """

    def __init__(
        self,
        documents: Iterable[dict[str, str]],
        tokenizer: Tokenizer,
        length: int,
        *,
        isolate: bool,
        buffer: int,
        seed: int,
    ) -> None:
        self.documents, self.tokenizer = documents, tokenizer
        self.length, self.isolate = length, isolate
        self.buffer, self.seed = buffer, seed
        self._rewind()

    def __getitems__(self, places: Sequence[int]) -> Batch:
        """The batch of the blocks at these rising places; going back reads from the beginning."""
        if places[0] < self.first:
            self._rewind()
        parts: list[Batch] = []
        while places:
            end = self.first + len(self.order)
            buffered = [place for place in places if place < end]
            places = [place for place in places if place >= end]
            if not buffered:
                self._fill()
                continue
            blocks = self.order[np.array(buffered) - self.first]
            part = self.blocks.__getitems__(blocks.tolist())
            part["indices"] += self.first
            parts.append(part)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def state_dict(self) -> dict[str, int]:
        """Where the buffer begins (document, token, blocks before), and its number of blocks."""
        return {
            "document": self.document,
            "token": self.token,
            "first": self.first,
            "blocks": len(self.order) or self.capacity,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first, self.capacity = state["first"], state["blocks"]
        self.order = np.empty(0, dtype=np.int64)
        self._seek(state["document"], state["token"])

    def _rewind(self) -> None:
        self.load_state_dict({"document": 0, "token": 0, "first": 0, "blocks": self.buffer})

    def _seek(self, document: int, token: int) -> None:
        self.document, self.token, self.ids = document, token, np.empty(0, dtype=np.uint16)
        # Opened at the first read, so that this object can be pickled for a worker until then.
        self.upcoming: Iterator[np.ndarray] | None = None

    def _read(self, document: int, token: int) -> Iterator[np.ndarray]:
        """The ids of the documents from this one on, the first from that token on."""
        documents = itertools.islice(self.documents, document, None)
        texts = (each["text"] for each in documents)
        for _, ids in encode_documents(texts, self.tokenizer):
            yield ids[token:]
            token = 0

    def _fill(self) -> None:
        """Shuffle the next blocks of the text; at its end it starts again."""
        self._advance(len(self.order) * self.length)
        self.first += len(self.order)
        wanted = self.capacity * self.length + 1
        self._buffer_ids(wanted)
        if len(self.ids) <= 1:
            self._seek(0, 0)
            self._buffer_ids(wanted)
        if len(self.ids) <= 1:
            raise ZooError("the text that is streamed has no token to learn")
        ids, eot = self.ids[:wanted], self.tokenizer.eot
        tokens = Tokens(ids, np.flatnonzero(ids == eot), 0, eot)
        self.blocks = Blocks(tokens, self.length, isolate=self.isolate)
        generator = np.random.default_rng(derive(self.seed, "data", self.first))
        self.order = generator.permutation(len(self.blocks))
        self.capacity = self.buffer

    def _buffer_ids(self, wanted: int) -> None:
        """Read on until there are as many ids as wanted, or the text ends."""
        if self.upcoming is None:
            self.upcoming = self._read(self.document, self.token)
        pieces, count = [self.ids], len(self.ids)
        while count < wanted and (piece := next(self.upcoming, None)) is not None:
            pieces.append(piece)
            count += len(piece)
        self.ids = np.concatenate(pieces)

    def _advance(self, tokens: int) -> None:
        """Move the place past tokens that were read; each document begins with end-of-text."""
        begins = np.flatnonzero(self.ids[: tokens + 1] == self.tokenizer.eot)
        later = begins[begins > 0]
        self.document += len(later)
        self.token = tokens - int(later[-1]) if len(later) else self.token + tokens
        self.ids = self.ids[tokens:]
