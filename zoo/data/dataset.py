"""Packs tokens into fixed-length blocks, and orders them into batches for any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from zoo.data.tokens import Tokens
from zoo.errors import ZooError
from zoo.objectives.base import IGNORE
from zoo.utils.seeding import derive

Batch = dict[str, torch.Tensor]


class Blocks(Dataset[Batch]):
    """Cuts a split into blocks of `length` tokens, documents packed one after the other.

    Block i holds the ids i * length to (i + 1) * length: all but the last are its tokens, all but
    the first its labels, so that each id but the very first of the split is a label exactly once. A
    batch is int64 tensors of shape (batch, length): `tokens`, `labels`, and with `isolate` also
    `documents` (numbered from 0 in each block) and `positions` (from 0 in each document, or in the
    part of it that the block has). The last block is padded by end-of-text, labelled IGNORE, as a
    document of its own. `indices` (batch,) are those asked for: with n blocks, index i + e·n is
    block i again, in epoch e, so that random draws for it can be keyed by its index.
    """

    def __init__(self, tokens: Tokens, length: int, *, isolate: bool) -> None:
        if length < 1:
            raise ZooError(f"loader.length={length} must be at least 1")
        self.tokens, self.length, self.isolate = tokens, length, isolate

    def __len__(self) -> int:
        return -(-max(len(self.tokens.ids) - 1, 0) // self.length)

    def __getitem__(self, index: int) -> Batch:
        return {name: tensor[0] for name, tensor in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The batch of these blocks, read at once."""
        ids, last = np.asarray(self.tokens.ids), len(self.tokens.ids) - 1
        asked = np.array(indices, dtype=np.int64)
        starts = asked[:, None] % len(self) * self.length
        places = starts + np.arange(self.length + 1)  # (B, T + 1)
        read = ids[np.minimum(places, last)].astype(np.int64)
        tokens, labels = read[:, :-1].copy(), read[:, 1:].copy()  # (B, T)
        padding = places[:, 1:] > last
        tokens[padding], labels[padding] = self.tokens.eot, IGNORE
        batch = {"tokens": tokens, "labels": labels, "indices": asked}
        if self.isolate:
            begins = (tokens == self.tokens.eot) & ~padding
            begins[:, 1:] |= padding[:, 1:] & ~padding[:, :-1]
            steps = np.arange(self.length)
            batch["documents"] = begins.cumsum(1) - begins[:, :1]
            batch["positions"] = steps - np.maximum.accumulate(np.where(begins, steps, 0), axis=1)
        return {name: torch.from_numpy(array) for name, array in batch.items()}


class GlobalBatches:
    """Samples batches without end: the indices of the `Blocks` that each rank takes at each step.

    Every epoch is a new permutation of all `size` blocks, and batches run on across its end, so
    that no block is dropped. `batch_size` counts the blocks of one optimiser step; they are the
    same whatever `world` (ranks) and `accumulate` (micro-batches per step), which cut the step's
    blocks in order: micro-batch first, rank second. An iterator's `state_dict` is all that a
    resumed run needs; with `changing`, its blocks may be others. `size` is None for a dataset with
    an order of its own, which is asked for the places 0, 1, 2 ... in it. Raises ZooError when the
    step cannot be divided evenly.
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
                f"loader.batch_size={batch_size} must be a multiple of {world * accumulate}"
                f" ({world} ranks x {accumulate} accumulated micro-batches)"
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
        # Without a length, Lightning reads a batch ahead and saves that place.
        return 2**62

    def micro_batch(self, start: int, part: int) -> list[int]:
        """This rank's blocks of a micro-batch, `start` blocks into the run: block + epoch·size."""
        start += (part * self.world + self.rank) * self.micro
        if self.size is None:
            return list(range(start, start + self.micro))
        blocks: list[int] = []
        while len(blocks) < self.micro:
            epoch, offset = divmod(start + len(blocks), self.size)
            if epoch != self._epoch:
                generator = np.random.default_rng(derive(self.seed, "data", epoch))
                self._epoch, self._order = epoch, generator.permutation(self.size)
            taken = self._order[offset : offset + self.micro - len(blocks)]
            blocks += (epoch * self.size + taken).tolist()
        return blocks


class GlobalIterator(Iterator[list[int]]):
    """Iterates over `GlobalBatches`; its state is its place, so that resuming costs nothing."""

    def __init__(self, batches: GlobalBatches) -> None:
        self.batches, self.start, self.part = batches, 0, 0

    def __next__(self) -> list[int]:
        blocks = self.batches.micro_batch(self.start, self.part)
        carry, self.part = divmod(self.part + 1, self.batches.accumulate)
        self.start += carry * self.batches.batch_size
        return blocks

    def state_dict(self) -> dict[str, Any]:
        return {"start": self.start, "part": self.part, "stream": self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ZooError when the state belongs to other data: its steps would be other blocks."""
        same = state["stream"] == self._identity() or self.batches.changing
        if not same or state["part"] >= self.batches.accumulate:
            raise ZooError(
                f"cannot resume: the data were {state['stream']} and are {self._identity()} now:"
                " restore them, choose another hydra.run.dir, or resume with these by"
                " changing=[data]"
            )
        self.start, self.part = state["start"], state["part"]

    def _identity(self) -> dict[str, Any]:
        size = "streamed" if self.batches.size is None else self.batches.size
        return {"blocks": size, "seed": self.batches.seed}


def identity_collate(batch: Batch, seed: int = 0) -> Batch:
    """Collate a batch of `Blocks`, which is whole already."""
    return batch
