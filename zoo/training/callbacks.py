"""Callbacks of every run: seeding, logging the loss, and writing checkpoints atomically."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.profilers import PassThroughProfiler
from torch import Tensor

from zoo.checkpoints import saving
from zoo.checkpoints.reading import read_checkpoint
from zoo.training import divergence
from zoo.training.module import LMModule
from zoo.utils.seeding import derive


class SeedEverything(lightning.Callback):
    """Seeds every generator from (seed, rank, step) before each step, so resuming needs no state.

    Evaluation has an RNG stream of its own; the next training step seeds anew.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        self._seed(module, "dropout", trainer.global_rank, index)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self._seed(module, "evaluation", trainer.global_rank)

    def _seed(self, module: LMModule, *names: str | int) -> None:
        seed = derive(self.seed, *names)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        if module.device.type == "cpu":  # torch.manual_seed would record a stack trace per device
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)


class LossLogger(lightning.Callback):
    """Logs a row every `every` steps, and stops a run whose loss is not finite.

    It stops before a checkpoint could hold such a state. On a GPU or several ranks it reads the
    loss only where a row, a checkpoint or an evaluation is due, as reading waits for them.
    """

    state_key = "Watch"  # in checkpoints; the class was called so first

    def __init__(self, every: int, checkpoint_every: int) -> None:
        self.every, self.checkpoint_every = every, checkpoint_every
        self.tokens = self.training_seconds = 0.0
        self.row: dict[str, float] = {}

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.started = time.perf_counter()
        self.logged_step = trainer.global_step

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.rate = optimizer.param_groups[0]["lr"]  # after the step, it is the next one's

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        step = trainer.global_step
        is_row = step % self.every == 0 or step == trainer.max_steps
        row_due = is_row and step != self.logged_step
        checkpoint_due = step % self.checkpoint_every == 0
        if not (row_due or checkpoint_due or self._reads_at_once(trainer, module)):
            return
        loss = self._read_loss(trainer, module)
        if row_due:
            loader = module.config["loader"]
            tokens = (step - self.logged_step) * loader["batch_size"] * loader["length"]
            self.logged_step = step
            self._log(trainer, step, loss, tokens)
            module.row_sums.zero_()

    @staticmethod
    def _reads_at_once(trainer: lightning.Trainer, module: LMModule) -> bool:
        """Whether reading the loss waits neither for a GPU nor for other ranks."""
        return trainer.world_size == 1 and module.device.type == "cpu"

    def _read_loss(self, trainer: lightning.Trainer, module: LMModule) -> dict[str, float]:
        """The mean loss since the last row, where there was a label.

        Raises Diverged where it is not finite, on all ranks.
        """
        sums = module.row_sums
        if not self._reads_at_once(trainer, module):
            sums = _sum_over_ranks(trainer, sums)
        nats, tokens = sums.tolist()
        divergence.refuse_metrics(module, {"train/loss": nats}, trainer.global_step)
        return {"train/loss": nats / tokens} if tokens else {}

    def _log(
        self, trainer: lightning.Trainer, step: int, loss: dict[str, float], tokens: int
    ) -> None:
        now = time.perf_counter()
        seconds = max(now - self.started, 1e-9)
        self.tokens += tokens
        self.training_seconds += seconds
        self.started = now
        self.row = {**loss, "train/lr": self.rate, "train/tokens_per_second": tokens / seconds}
        for logger in trainer.loggers:
            logger.log_metrics(self.row, step)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self._read_loss(trainer, module)
        self.paused = time.perf_counter()

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if trainer.training or trainer.state.fn == "fit":
            self.started += time.perf_counter() - self.paused

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["shown"] = _sum_over_ranks(trainer, module.row_sums).cpu()

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.is_global_zero:  # it is the sum over all ranks
            module.row_sums = checkpoint["shown"].to(module.device)

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "training_seconds": self.training_seconds, "row": self.row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tokens, self.training_seconds = state["tokens"], state["training_seconds"]
        self.row = state["row"]


def _sum_over_ranks(trainer: lightning.Trainer, sums: Tensor) -> Tensor:
    reduced: Tensor = trainer.strategy.reduce(sums.clone(), reduce_op="sum")
    return reduced


class BestCheckpoint(ModelCheckpoint):
    """Writes best.ckpt, and finds it again where the run's folder was moved or copied."""

    @property
    def state_key(self) -> str:
        """Its key in checkpoints; the class was called Best first."""
        return super().state_key.replace(type(self).__name__, "Best", 1)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        def here(path: str) -> str:
            return str(Path(str(self.dirpath), Path(path).name)) if path else path

        paths = {name: here(state[name]) for name in state if name.endswith("_path")}
        scores = {here(path): score for path, score in state["best_k_models"].items()}
        super().load_state_dict(
            {**state, **paths, "dirpath": self.dirpath, "best_k_models": scores}
        )


class NoProfiler(PassThroughProfiler):
    """Lightning's profiler that measures nothing, without 50 new contexts a step."""

    def profile(self, action_name: str) -> Any:
        return contextlib.nullcontext(action_name)


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes checkpoints as a whole or not at all, whether the disk is full or the run is killed.

    Reads those of sharded models as well, for a run that is resumed without shards.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        saving.save(Path(path), checkpoint)

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return read_checkpoint(path)
