"""From tokens to batches: fixed-length blocks, and the order in which any number of processes sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from zoo.data.cache import Tokens
from zoo.errors import ZooError
from zoo.objectives.base import IGNORE
from zoo.utils.seeding import derive

Batch = dict[str, torch.Tensor]


class Blocks(Dataset[Batch]):
    """A split cut into blocks of `length` tokens, documents packed one after the other.

    Block i holds the ids i * length to (i + 1) * length: all but the last are its tokens, all but the first its labels,
    so that each id but the very first of the split is a label exactly once. A batch is int64 tensors of shape (batch,
    length): `tokens`, `labels`, and with `isolate` also `documents` (numbered from 0 in each block) and `positions`
    (from 0 in each document, or in the part of it that the block has). The places that the last block lacks are
    end-of-text, labelled IGNORE, and a document of their own. `rows` (batch,) are the indices asked for: with n blocks,
    index i + e·n is block i again, in epoch e, so that what is drawn for it there can be drawn by its index.
    """

    def __init__(self, tokens: Tokens, length: int, *, isolate: bool) -> None:
        if length < 1:
            raise ZooError(f"loader.length={length} must be at least 1")
        self.tokens, self.length, self.isolate = tokens, length, isolate

    def __len__(self) -> int:
        return -(-max(len(self.tokens.ids) - 1, 0) // self.length)

    def __getitem__(self, index: int) -> Batch:
        return {name: rows[0] for name, rows in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The batch of these blocks, read at once."""
        ids, last = np.asarray(self.tokens.ids), len(self.tokens.ids) - 1
        rows = np.array(indices, dtype=np.int64)
        places = rows[:, None] % len(self) * self.length + np.arange(self.length + 1)  # (B, T + 1)
        read = ids[np.minimum(places, last)].astype(np.int64)
        tokens, labels, padding = (
            read[:, :-1].copy(),
            read[:, 1:].copy(),
            places[:, 1:] > last,
        )  # (B, T)
        tokens[padding], labels[padding] = self.tokens.eot, IGNORE
        batch = {"tokens": tokens, "labels": labels, "rows": rows}
        if self.isolate:
            begins = (tokens == self.tokens.eot) & ~padding
            begins[:, 1:] |= padding[:, 1:] & ~padding[:, :-1]
            steps = np.arange(self.length)
            batch["documents"] = begins.cumsum(1) - begins[:, :1]
            batch["positions"] = steps - np.maximum.accumulate(np.where(begins, steps, 0), axis=1)
        return {name: torch.from_numpy(array) for name, array in batch.items()}


class GlobalBatches:
    """A batch sampler without end: the blocks that each process takes at each step, as indices of `Blocks`.

    Every epoch is a new permutation of all `size` blocks, and batches run on across its end, so that no block is
    dropped. `batch_size` counts the blocks of one optimiser step; they are the same whatever `world` (processes) and
    `accumulate` (micro-batches a step), which cut the step's blocks in order: micro-batch first, process second. An
    iterator's `state_dict` is all that a resumed run needs; with `changing`, its blocks may be others. Where `size` is None,
    what is read has an order of its own, and is asked for the places 0, 1, 2 ... in it. Raises ZooError when the step cannot be
    cut evenly.
    """

    def __init__(
        self,
        size: int | None,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        changing: bool = False,
    ) -> None:
        if batch_size < 1 or batch_size % (world * accumulate):
            raise ZooError(
                f"loader.batch_size={batch_size} must be a multiple of {world * accumulate} "
                f"({world} processes x {accumulate} accumulated micro-batches)"
            )
        if size is not None and size < 1:
            raise ZooError("there is no block of tokens to draw batches from")
        self.size, self.batch_size, self.seed, self.changing = size, batch_size, seed, changing
        self.rank, self.world, self.accumulate = rank, world, accumulate
        self.micro = batch_size // (world * accumulate)
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __iter__(self) -> GlobalIterator:
        return GlobalIterator(self)

    def __len__(self) -> int:
        return (
            2**62
        )  # no run gets there; without a length, Lightning reads a batch ahead and saves that place

    def share(self, start: int, part: int) -> list[int]:
        """What this process takes in micro-batch `part` of the step that starts after `start` blocks: block + epoch·size."""
        start += (part * self.world + self.rank) * self.micro
        if self.size is None:
            return list(range(start, start + self.micro))
        blocks: list[int] = []
        while len(blocks) < self.micro:
            epoch, offset = divmod(start + len(blocks), self.size)
            if epoch != self._epoch:
                random = np.random.default_rng(derive(self.seed, "data", epoch))
                self._epoch, self._order = epoch, random.permutation(self.size)
            blocks += (
                epoch * self.size + self._order[offset : offset + self.micro - len(blocks)]
            ).tolist()
        return blocks


class GlobalIterator(Iterator[list[int]]):
    """A place in the stream of `GlobalBatches`; its state is that place, so that resuming costs nothing."""

    def __init__(self, batches: GlobalBatches) -> None:
        self.batches, self.start, self.part = batches, 0, 0

    def __next__(self) -> list[int]:
        blocks = self.batches.share(self.start, self.part)
        carry, self.part = divmod(self.part + 1, self.batches.accumulate)
        self.start += carry * self.batches.batch_size
        return blocks

    def state_dict(self) -> dict[str, Any]:
        return {"start": self.start, "part": self.part, "stream": self._stream()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ZooError when the state belongs to another stream: its steps would be other blocks."""
        if (state["stream"] != self._stream() and not self.batches.changing) or state[
            "part"
        ] >= self.batches.accumulate:
            raise ZooError(
                f"cannot resume: the data then were {state['stream']} and are {self._stream()} now: bring back what was there,"
                " choose another hydra.run.dir, or go on with these by changing=[data]"
            )
        self.start, self.part = state["start"], state["part"]

    def _stream(self) -> dict[str, Any]:
        return {
            "blocks": "streamed" if self.batches.size is None else self.batches.size,
            "seed": self.batches.seed,
        }


def unprepared(batch: Batch, seed: int = 0) -> Batch:
    """The collate function of `Blocks`, whose batches are whole already."""
    return batch
