"""Stops a run on a signal, with a checkpoint that it can be resumed from."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Checkpoint

from zoo.utils import system


class Interrupted(BaseException):
    """The run was asked to stop; like KeyboardInterrupt, no handler of errors should catch it.

    `agreed` says whether all ranks stop now, or this one alone.
    """

    def __init__(self, signal_name: str, agreed: bool = False) -> None:
        super().__init__(signal_name)
        self.agreed = agreed


class SignalCheckpoint(Checkpoint):
    """Writes last.ckpt every `every` steps, and after the step in which a signal asks to stop.

    Ctrl-C, SIGTERM and SIGUSR1 then end the run, and a second one ends it at once. A checkpoint is
    written after the step's evaluation: Lightning, resumed from one before, would skip that. A
    signal to one rank is enough, as the ranks tell each other after each step.
    """

    SIGNALS = (signal.SIGINT, *system.STOP)

    def __init__(self, path: Path, every: int) -> None:
        self.path, self.every, self.signal, self.step = path, every, 0, 0

    def __enter__(self) -> SignalCheckpoint:
        self.before: dict[int, Any] = {number: signal.getsignal(number) for number in self.SIGNALS}
        self._listen()
        return self

    def __exit__(self, *_: Any) -> None:
        self._set(self.before)

    def _listen(self) -> None:
        self._set(dict.fromkeys(self.SIGNALS, self._stop))

    def _set(self, handlers: dict[int, Any]) -> None:
        with contextlib.suppress(ValueError):  # only a main thread may handle signals
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: Any) -> None:
        if self.signal:
            raise Interrupted(signal.Signals(number).name)
        self.signal = number

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        self.step = trainer.global_step
        self._listen()  # again, as Lightning's handler would wait for ranks that have no signal

    def on_validation_start(self, *_: Any) -> None:
        self._listen()

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        stepped, self.step = trainer.global_step != self.step, trainer.global_step
        if not self.signal and trainer.world_size == 1 and trainer.global_step % self.every:
            return
        batches = trainer.fit_loop.total_batch_idx + 1
        if stepped and batches % trainer.val_check_batch:  # else its validation comes first
            self._step_done(trainer, module)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if trainer.state.fn == "fit":
            self._step_done(trainer, module)

    def _step_done(self, trainer: Any, module: Any) -> None:
        number = self.signal
        if trainer.world_size > 1:  # Lightning, too, waits for the others at every step
            mine = torch.tensor(number, device=module.device)
            number = int(trainer.strategy.reduce(mine, reduce_op="max"))
        if number or trainer.global_step % self.every == 0:
            with module.evaluation_weights():
                trainer.save_checkpoint(self.path)
        if number:
            raise Interrupted(signal.Signals(number).name, agreed=True)
