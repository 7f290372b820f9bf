"""Text too large to be tokenised beforehand: it is read, tokenised and packed while a run trains."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from zoo.data.cache import Tokens, encoded
from zoo.data.dataset import Batch, Blocks
from zoo.data.tokenizers import Tokenizer
from zoo.errors import ZooError
from zoo.utils.seeding import derive


class Stream(Dataset[Batch]):
    """What `Blocks` is to tokens on disk, for documents that are tokenised as they are read; asked for places in its own order.

    A buffer takes the next `buffer` blocks of the text, is shuffled, and is emptied before it is filled again. At the end of
    the text a smaller buffer is the epoch's last, and the text starts again. So each epoch has the blocks that `Blocks` would
    cut, each once, and where a buffer begins in the text says all that is in it: that place is the state. Who resumes reads
    the documents before it without tokenising them, and fills that one buffer; no token is kept in a checkpoint. `rows` are
    the numbers of the blocks since the beginning of the run, in the order of the text.

    Each of several processes reads and tokenises the whole text, and takes its rows of each batch: N processes do this work
    N times. Raises ZooError when the text has no block.
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
        self.documents, self.tokenizer, self.length, self.isolate = (
            documents,
            tokenizer,
            length,
            isolate,
        )
        self.buffer, self.seed = buffer, seed
        self._rewind()

    def __getitems__(self, places: Sequence[int]) -> Batch:
        """The batch of the blocks at these places, which rise; to go back costs reading from the beginning."""
        if places[0] < self.first:
            self._rewind()
        parts: list[Batch] = []
        while places:
            held = self.first + len(self.order)
            here, places = (
                [place for place in places if place < held],
                [place for place in places if place >= held],
            )
            if here:
                parts.append(
                    self.blocks.__getitems__(self.order[np.array(here) - self.first].tolist())
                )
                parts[-1]["rows"] += self.first
            else:
                self._fill()
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def state_dict(self) -> dict[str, int]:
        """Where the buffer begins (document, its token, blocks before since the beginning), and how many blocks it has."""
        return {
            "document": self.document,
            "token": self.token,
            "first": self.first,
            "blocks": len(self.order) or self.room,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first, self.room, self.order = (
            state["first"],
            state["blocks"],
            np.empty(0, dtype=np.int64),
        )
        self._open(state["document"], state["token"])

    def _rewind(self) -> None:
        self.load_state_dict({"document": 0, "token": 0, "first": 0, "blocks": self.buffer})

    def _open(self, document: int, token: int) -> None:
        self.document, self.token, self.ids = document, token, np.empty(0, dtype=np.uint16)
        self.coming: Iterator[np.ndarray] | None = (
            None  # until it is read, so that a worker can be given what is not open
        )

    def _read(self, document: int, token: int) -> Iterator[np.ndarray]:
        """The ids of the documents from this one on, the first without so many tokens."""
        texts = (row["text"] for row in itertools.islice(self.documents, document, None))
        for _, ids in encoded(texts, self.tokenizer):
            yield ids[token:]
            token = 0

    def _fill(self) -> None:
        """Shuffle the next blocks of the text; at its end it starts again."""
        self._pass_over(len(self.order) * self.length)
        self.first += len(self.order)
        for _ in range(2):
            pieces, missing = [self.ids], self.room * self.length + 1 - len(self.ids)
            self.coming = self.coming or self._read(self.document, self.token)
            while missing > 0 and (piece := next(self.coming, None)) is not None:
                pieces.append(piece)
                missing -= len(piece)
            self.ids = np.concatenate(pieces)
            if len(self.ids) > 1:
                break
            self._open(0, 0)
        else:
            raise ZooError("the text that is streamed has no token to learn")
        held = self.ids[: self.room * self.length + 1]
        self.blocks = Blocks(
            Tokens(held, np.flatnonzero(held == self.tokenizer.eot), 0, self.tokenizer.eot),
            self.length,
            isolate=self.isolate,
        )
        self.order = np.random.default_rng(derive(self.seed, "data", self.first)).permutation(
            len(self.blocks)
        )
        self.room = self.buffer

    def _pass_over(self, tokens: int) -> None:
        """Let the place be so many tokens further on, which have been read; each document begins with end-of-text."""
        begins = np.flatnonzero(self.ids[: tokens + 1] == self.tokenizer.eot)
        inside = begins[begins > 0]
        self.document += len(inside)
        self.token = tokens - int(inside[-1]) if len(inside) else self.token + tokens
        self.ids = self.ids[tokens:]
