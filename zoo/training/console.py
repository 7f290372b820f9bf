"""What is seen of a run while it trains: a bar on a terminal, a line an evaluation elsewhere."""

from __future__ import annotations

import math
import time
from typing import Any

import lightning
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from zoo.training.callbacks import Watch

OFTEN = 5.0  # seconds, within which no second line of training is printed


class LogPrinter(lightning.Callback):
    """A line for each row of metrics that comes, at most one in some seconds, and for each evaluation: without a terminal."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.told, self.due = watch, watch.row, -math.inf

    @rank_zero_only
    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.told = self.watch.row  # of a run that goes on, what was printed before
        if module.config["trainer"]["compile"]:
            print("compiling, which the first step waits for …", flush=True)

    @rank_zero_only
    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        row = self.watch.row
        if row is self.told or time.monotonic() < self.due:
            return
        self.told, self.due = row, time.monotonic() + OFTEN
        print(f"step {trainer.global_step}/{trainer.max_steps}  {self._training()}", flush=True)

    def _training(self) -> str:
        row = self.watch.row
        loss = f"train/loss {row['train/loss']:.4f}  " if "train/loss" in row else ""
        return f"{loss}{row['train/tokens_per_second']:,.0f} tokens/s" if row else ""

    @rank_zero_only
    def on_validation_end(self, trainer: Any, module: Any) -> None:
        validation = trainer.callback_metrics["val/loss"].item()
        line = f"step {trainer.global_step}/{trainer.max_steps}  val/loss {validation:.4f}  {self._training()}"
        print(line.rstrip(), flush=True)


class ProgressBar(RichProgressBar):
    """Loss and tokens a second beside the bar, drawn anew at most twice a second: that takes longer than a small step."""

    def __init__(self, watch: Watch, steps: int) -> None:
        super().__init__(refresh_rate=2, leave=True)
        self.watch, self.steps, self.drawn, self.compiling = watch, steps, -math.inf, False

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        now, step = time.monotonic(), trainer.global_step
        if now - self.drawn >= 1 / self.refresh_rate or step == self.steps:
            self.drawn = now
            super().on_train_batch_end(
                trainer, module, outputs, batch, step - 1
            )  # steps, not micro-batches
        if self.compiling and self.progress is not None and self.train_progress_bar_id is not None:
            self.compiling = False
            self.progress.update(self.train_progress_bar_id, description="training")

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.compiling = module.config["trainer"]["compile"]
        super().on_train_start(trainer, module)

    def get_metrics(self, trainer: Any, module: Any) -> dict[str, Any]:
        row, validation = self.watch.row, trainer.callback_metrics.get("val/loss")
        shown = {"loss": f"{row['train/loss']:.3f}"} if "train/loss" in row else {}
        shown |= {"tokens/s": f"{row['train/tokens_per_second']:,.0f}"} if row else {}
        return shown | ({"val": f"{validation.item():.3f}"} if validation is not None else {})

    @property
    def total_train_batches(self) -> int:
        return self.steps

    def _get_train_description(self, current_epoch: int) -> str:
        return "compiling" if self.compiling else "training"
