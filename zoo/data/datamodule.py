"""The batches of a corpus as Lightning asks for them."""

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

from zoo.data.cache import Corpus
from zoo.data.dataset import Batch, Blocks, GlobalBatches, unprepared
from zoo.data.eval_breakdown import EvalBreakdown
from zoo.data.streaming import Stream
from zoo.errors import ZooError
from zoo.objectives import IGNORE
from zoo.utils.seeding import derive

FILLER = -1  # in place of a block, where a process has one less than others: shards need all processes for every batch


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
        prepare: Callable[..., Batch] = unprepared,
        eval_prepare: Callable[..., Batch] | None = None,
        documents: Iterable[dict[str, str]] | None = None,
        shuffle: int = 1,
        changing: bool = False,
    ) -> None:
        super().__init__()
        tokens = len(corpus.known.ids)
        if tokens <= length:
            raise ZooError(
                f"the train split has {tokens} tokens, too few for one block of loader.length={length} and its next "
                "token: give more text or a smaller loader.length"
            )
        measured = len(corpus.splits["val"].ids)
        if eval_length is not None and measured and eval_length > max(length, measured):
            raise ZooError(
                f"loader.eval_length={eval_length} is longer than all of the val split's {measured} tokens: give"
                " more text or a smaller loader.eval_length"
            )
        if documents is None:
            self.train: Blocks | Stream = Blocks(corpus.known, length, isolate=isolate)
        else:
            self.train = Stream(
                documents, corpus.tokenizer, length, isolate=isolate, buffer=shuffle, seed=seed
            )
        self.blocks = {
            name: Blocks(corpus.splits[name], eval_length or length, isolate=isolate)
            for name in ("val", "test")
        }
        self.tokens, self.fingerprint, self.changing = (
            corpus.splits,
            str(corpus.summary["fingerprint"]),
            changing,
        )
        self.batch_size, self.workers, self.seed, self.accumulate = (
            batch_size,
            workers,
            seed,
            accumulate,
        )
        self.prepare = {
            name: partial(
                prepare if name == "train" else eval_prepare or prepare,
                seed=derive(seed, "objective", name),
            )
            for name in ("train", *self.blocks)
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
        """Nothing yet, to sum an evaluation of a split in."""
        return EvalBreakdown(self.tokens[split], self.blocks[split].length)

    def _batches(self) -> GlobalBatches:
        rank, world = (
            (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        )
        size = len(self.train) if isinstance(self.train, Blocks) else None
        return GlobalBatches(
            size, self.batch_size, self.seed, rank, world, self.accumulate, self.changing
        )

    def state_dict(self) -> dict[str, str]:
        """Which data they are: a run that is gone on with must have the same."""
        return {"fingerprint": self.fingerprint}

    def _in_order(self, split: str) -> DataLoader:
        batches = self._batches()
        blocks = self.blocks[split]
        own = [*range(batches.rank, len(blocks), batches.world)]
        own += [FILLER] * (-(-len(blocks) // batches.world) - len(own))
        # No workers: reading is far faster than any model, and starting workers at every evaluation is not.
        return DataLoader(
            blocks,
            batch_sampler=BatchSampler(own, batches.micro, drop_last=False),
            collate_fn=partial(_without_fillers, self.prepare[split]),
            pin_memory=torch.cuda.is_available(),
        )


def _single_threaded(worker: int) -> None:
    # A fork has no threads of the pool that its parent's tokenizer made, and would wait for them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def raise_dead_worker_in_next(*_: object) -> None:
    """Call before training, and when the processes that read data run: the death of one is told where its batch is awaited.

    torch tells it by a signal as well, whose exception comes wherever the program is, also in its tidying up.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and hasattr(signal, "SIGCHLD"):  # Windows has none
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def of_a_dead_worker(error: BaseException) -> bool:
    """Whether a process that reads data is gone: torch says so, or its connection broke while a batch was awaited."""
    awaited = any(
        frame.f_code.co_name == "_get_data" for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    return str(error).startswith("DataLoader worker (") or (
        awaited and isinstance(error, OSError | EOFError | RuntimeError)
    )


def _without_fillers(prepare: Callable[..., Batch], batch: Batch) -> Batch:
    """A batch of which the blocks that stand in for none are not to be predicted."""
    prepared = prepare(batch)
    prepared["labels"][batch["rows"] == FILLER] = IGNORE
    return prepared
