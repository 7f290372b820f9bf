"""Shows a run's progress: a bar on a terminal, printed lines elsewhere."""

from __future__ import annotations

import math
import time
from typing import Any

import lightning
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from zoo.training.callbacks import LossLogger

PAUSE = 5.0  # seconds, at least, between printed lines of training


class LogPrinter(lightning.Callback):
    """Prints a line for each evaluation, and for rows of metrics, at most one in some seconds."""

    def __init__(self, loss_logger: LossLogger) -> None:
        self.loss_logger = loss_logger
        self.printed = loss_logger.row
        self.next_time = -math.inf

    @rank_zero_only
    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.printed = self.loss_logger.row  # of a resumed run, printed before
        if module.config["trainer"]["compile"]:
            print("compiling, which the first step waits for …", flush=True)

    @rank_zero_only
    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        row = self.loss_logger.row
        if row is self.printed or time.monotonic() < self.next_time:
            return
        self.printed, self.next_time = row, time.monotonic() + PAUSE
        print(f"{_step(trainer)}  {self._training()}", flush=True)

    @rank_zero_only
    def on_validation_end(self, trainer: Any, module: Any) -> None:
        validation = trainer.callback_metrics["val/loss"].item()
        line = f"{_step(trainer)}  val/loss {validation:.4f}  {self._training()}"
        print(line.rstrip(), flush=True)

    def _training(self) -> str:
        row = self.loss_logger.row
        loss = f"train/loss {row['train/loss']:.4f}  " if "train/loss" in row else ""
        return f"{loss}{row['train/tokens_per_second']:,.0f} tokens/s" if row else ""


def _step(trainer: lightning.Trainer) -> str:
    return f"step {trainer.global_step}/{trainer.max_steps}"


class ProgressBar(RichProgressBar):
    """A bar with the loss and tokens per second, redrawn at most twice a second.

    Drawing takes longer than a small step.
    """

    def __init__(self, loss_logger: LossLogger, steps: int) -> None:
        super().__init__(refresh_rate=2, leave=True)
        self.loss_logger, self.steps = loss_logger, steps
        self.drawn, self.compiling = -math.inf, False

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        now, step = time.monotonic(), trainer.global_step
        if now - self.drawn >= 1 / self.refresh_rate or step == self.steps:
            self.drawn = now
            # the bar counts steps, not micro-batches
            super().on_train_batch_end(trainer, module, outputs, batch, step - 1)
        if self.compiling and self.progress is not None and self.train_progress_bar_id is not None:
            self.compiling = False
            self.progress.update(self.train_progress_bar_id, description="training")

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.compiling = module.config["trainer"]["compile"]
        super().on_train_start(trainer, module)

    def get_metrics(self, trainer: Any, module: Any) -> dict[str, Any]:
        row, validation = self.loss_logger.row, trainer.callback_metrics.get("val/loss")
        shown: dict[str, Any] = {}
        if "train/loss" in row:
            shown["loss"] = f"{row['train/loss']:.3f}"
        if row:
            shown["tokens/s"] = f"{row['train/tokens_per_second']:,.0f}"
        if validation is not None:
            shown["val"] = f"{validation.item():.3f}"
        return shown

    @property
    def total_train_batches(self) -> int:
        return self.steps

    def _get_train_description(self, current_epoch: int) -> str:
        return "compiling" if self.compiling else "training"
