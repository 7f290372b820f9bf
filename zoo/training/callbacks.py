"""What happens beside the training step: random streams, watching the loss, interruption, checkpoints, metrics.csv."""

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

from zoo.checkpoints.reading import dumps, read_checkpoint
from zoo.training import divergence
from zoo.utils.files import write_atomically
from zoo.utils.seeding import derive


class SeedEverything(lightning.Callback):
    """Seeds every generator from (seed, rank, step) before each step, so that nothing need be stored to resume exactly.

    Evaluation runs on a stream of its own and leaves that of training where it was, since the next step seeds anew.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        self._seed(module, "dropout", trainer.global_rank, index)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self._seed(module, "evaluation", trainer.global_rank)

    def _seed(self, module: Any, *names: str | int) -> None:
        seed = derive(self.seed, *names)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        if (
            module.device.type == "cpu"
        ):  # torch.manual_seed keeps a stack trace for each kind of device that is not here
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)


class Watch(lightning.Callback):
    """Stops when the loss is not finite, before a checkpoint could keep it, and logs a row every `every` steps.

    On a GPU or several ranks it looks only where a row, a checkpoint or an evaluation is due, as looking waits for them.
    """

    def __init__(self, every: int, checkpoint_every: int) -> None:
        self.every, self.checkpoint_every = every, checkpoint_every
        self.tokens = self.training_seconds = 0.0
        self.row: dict[str, float] = {}

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.started = time.perf_counter()
        self.logged = trainer.global_step

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.rate = optimizer.param_groups[0]["lr"]  # at the end of the step it is the next one's

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        step = trainer.global_step
        due = step != self.logged and (step % self.every == 0 or step == trainer.max_steps)
        if not (due or step % self.checkpoint_every == 0 or self._is_cheap(trainer, module)):
            return
        loss = self._look(trainer, module)
        if due:
            loader = module.config["loader"]
            seen, self.logged = (step - self.logged) * loader["batch_size"] * loader["length"], step
            self._log(trainer, step, loss, seen)
            module.row_sums.zero_()

    @staticmethod
    def _is_cheap(trainer: Any, module: Any) -> bool:
        """Whether to look is to wait neither for a GPU nor for other ranks."""
        return trainer.world_size == 1 and module.device.type == "cpu"

    def _look(self, trainer: Any, module: Any) -> dict[str, float]:
        """The mean loss since the last row, where there was a label. Raises Diverged where it is not finite, on all ranks."""
        cheap = self._is_cheap(trainer, module)
        shown = (
            module.row_sums
            if cheap
            else trainer.strategy.reduce(module.row_sums.clone(), reduce_op="sum")
        )
        nats, tokens = shown.tolist()
        divergence.refuse_metrics(module, {"train/loss": nats}, trainer.global_step)
        return {"train/loss": nats / tokens} if tokens else {}

    def _log(self, trainer: Any, step: int, loss: dict[str, float], tokens: int) -> None:
        now = time.perf_counter()
        seconds = max(now - self.started, 1e-9)
        self.tokens += tokens
        self.training_seconds += seconds
        self.started = now
        self.row = {**loss, "train/lr": self.rate, "train/tokens_per_second": tokens / seconds}
        for logger in trainer.loggers:
            logger.log_metrics(self.row, step)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self._look(trainer, module)
        self.paused = time.perf_counter()

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if trainer.training or trainer.state.fn == "fit":
            self.started += time.perf_counter() - self.paused

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["shown"] = trainer.strategy.reduce(
            module.row_sums.clone(), reduce_op="sum"
        ).cpu()

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.is_global_zero:  # it is that of all ranks
            module.row_sums = checkpoint["shown"].to(module.device)

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "training_seconds": self.training_seconds, "row": self.row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tokens, self.training_seconds, self.row = (
            state["tokens"],
            state["training_seconds"],
            state["row"],
        )


class BestCheckpoint(ModelCheckpoint):
    """Writes best.ckpt, and knows which it was where the run's folder has been moved or copied."""

    @property
    def state_key(self) -> str:
        """The key under which checkpoints have had its state from the first: this class was Best then."""
        return super().state_key.replace(type(self).__name__, "Best", 1)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        def here(path: str) -> str:
            return str(Path(str(self.dirpath), Path(path).name)) if path else path

        names = [name for name in state if name.endswith("_path")]
        scores = {here(path): score for path, score in state["best_k_models"].items()}
        paths = {name: here(state[name]) for name in names}
        super().load_state_dict(
            {**state, **paths, "dirpath": self.dirpath, "best_k_models": scores}
        )


class Unprofiled(PassThroughProfiler):
    """Lightning's profiler that measures nothing, without a new context for it some fifty times a step."""

    def profile(self, action_name: str) -> Any:
        return contextlib.nullcontext(action_name)


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes beside the checkpoint and renames, so that a full disk or a kill leaves the one before whole.

    Reads those of shards as well, for a run that goes on without them.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        write_atomically(Path(path), dumps(checkpoint))

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return read_checkpoint(path)
