"""Serves the batches of a corpus to Lightning, for training and for evaluation."""

from __future__ import annotations

import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import partial

import lightning
import torch
from torch.utils.data import BatchSampler, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from zoo.data.cache_format import Corpus
from zoo.data.dataset import Batch, Blocks, GlobalBatches, identity_collate
from zoo.data.eval_breakdown import EvalBreakdown
from zoo.data.streaming import Stream
from zoo.errors import ZooError
from zoo.objectives import IGNORE
from zoo.utils import compat
from zoo.utils.seeding import derive

# Stands for a block where a rank has one less than others: a sharded batch needs all ranks.
FILLER = -1


class Data(lightning.LightningDataModule):
    """Endless train batches, whose place is saved in checkpoints; val and test batches in order.

    `batch_size` counts the blocks of one optimiser step over all ranks and the `accumulate`
    micro-batches; `length` counts the tokens of a block, `eval_length` those of a val or test
    block. Every rank takes its own part, so the Trainer needs `use_distributed_sampler=False`.
    `prepare` and `eval_prepare` are an objective's, for training and for evaluations; each split
    has a seed of its own, so that every evaluation sees the same. `documents` are those of a
    streamed train split (zoo.data.streaming), shuffled in a buffer of `shuffle` blocks. `changing`
    lets a run resume with other data. Raises ZooError when the train split is smaller than one
    block or the batch cannot be divided evenly.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        batch_size: int,
        length: int,
        isolate: bool,
        workers: int,
        seed: int,
        accumulate: int = 1,
        eval_length: int | None = None,
        prepare: Callable[..., Batch] = identity_collate,
        eval_prepare: Callable[..., Batch] | None = None,
        documents: Iterable[dict[str, str]] | None = None,
        shuffle: int = 1,
        changing: bool = False,
    ) -> None:
        super().__init__()
        tokens = len(corpus.tokenised_train.ids)
        if tokens <= length:
            raise ZooError(
                f"the train split has {tokens} tokens, too few for one block of"
                f" loader.length={length} and its next token: give more text or a smaller"
                " loader.length"
            )
        val_tokens = len(corpus.splits["val"].ids)
        if eval_length is not None and val_tokens and eval_length > max(length, val_tokens):
            raise ZooError(
                f"loader.eval_length={eval_length} is longer than all of the val split's"
                f" {val_tokens} tokens: give more text or a smaller loader.eval_length"
            )
        if documents is None:
            self.train: Blocks | Stream = Blocks(corpus.tokenised_train, length, isolate=isolate)
        else:
            self.train = Stream(
                documents, corpus.tokenizer, length, isolate=isolate, buffer=shuffle, seed=seed
            )
        self.blocks = {
            name: Blocks(corpus.splits[name], eval_length or length, isolate=isolate)
            for name in ("val", "test")
        }
        self.tokens = corpus.splits
        self.fingerprint, self.changing = str(corpus.summary["fingerprint"]), changing
        self.batch_size, self.accumulate = batch_size, accumulate
        self.workers, self.seed = workers, seed
        prepares = {"train": prepare} | dict.fromkeys(self.blocks, eval_prepare or prepare)
        self.prepare = {
            name: partial(each, seed=derive(seed, "objective", name))
            for name, each in prepares.items()
        }

    def train_dataloader(self) -> StatefulDataLoader:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata's own doing
            return StatefulDataLoader(
                self.train,
                batch_sampler=self._batches(),
                collate_fn=self.prepare["train"],
                num_workers=self.workers,
                worker_init_fn=_single_threaded,
                pin_memory=torch.cuda.is_available(),
            )

    def val_dataloader(self) -> DataLoader:
        return self._in_order("val")

    def test_dataloader(self) -> DataLoader:
        return self._in_order("test")

    def breakdown(self, split: str) -> EvalBreakdown:
        """An empty breakdown of an evaluation of a split."""
        return EvalBreakdown(self.tokens[split], self.blocks[split].length)

    def _batches(self) -> GlobalBatches:
        rank, world = 0, 1
        if self.trainer:
            rank, world = self.trainer.global_rank, self.trainer.world_size
        size = len(self.train) if isinstance(self.train, Blocks) else None
        return GlobalBatches(
            size, self.batch_size, self.seed, rank, world, self.accumulate, self.changing
        )

    def state_dict(self) -> dict[str, str]:
        """The identity of the data, which a resumed run must share."""
        return {"fingerprint": self.fingerprint}

    def _in_order(self, split: str) -> DataLoader:
        batches = self._batches()
        blocks = self.blocks[split]
        own = [*range(batches.rank, len(blocks), batches.world)]
        own += [FILLER] * (-(-len(blocks) // batches.world) - len(own))
        # No workers: reading is fast, and starting workers at every evaluation is not.
        return DataLoader(
            blocks,
            batch_sampler=BatchSampler(own, batches.micro, drop_last=False),
            collate_fn=partial(_without_fillers, self.prepare[split]),
            pin_memory=torch.cuda.is_available(),
        )


def _single_threaded(worker: int) -> None:
    # A fork lacks the threads of its parent's tokenizer, and would wait for them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def raise_dead_worker_in_next(*_: object) -> None:
    """Let the death of a data worker raise in `next()` alone, where its batch is awaited.

    torch also raises from a signal handler, wherever the program is, also in its clean-up. Call
    this before training, and again when the data workers run.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and hasattr(signal, "SIGCHLD"):  # Windows has none
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def is_dead_worker(error: BaseException) -> bool:
    """Whether an error means that a data worker died: torch says so, or its connection broke."""
    if str(error).startswith("DataLoader worker ("):
        return True
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    return compat.came_from_a_data_worker(frames) and isinstance(
        error, OSError | EOFError | RuntimeError
    )


def _without_fillers(prepare: Callable[..., Batch], batch: Batch) -> Batch:
    """Prepare a batch, with no labels in blocks that are fillers."""
    prepared = prepare(batch)
    prepared["labels"][batch["indices"] == FILLER] = IGNORE
    return prepared
