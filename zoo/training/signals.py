"""Ends a run that is asked to stop, with a checkpoint that it can be resumed from."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Checkpoint

from zoo.utils import system


class Interrupted(BaseException):
    """Asked to stop by a signal; like KeyboardInterrupt, no handler of errors should catch it.

    `agreed` is whether all processes that train together stop now, or this one alone.
    """

    def __init__(self, by: str, agreed: bool = False) -> None:
        super().__init__(by)
        self.agreed = agreed


class SignalCheckpoint(Checkpoint):
    """Writes last.ckpt every so many steps, and at the next one on Ctrl-C, SIGTERM or SIGUSR1; then stops, on a second at once.

    A step's evaluation belongs to it: Lightning takes one that was due after a checkpoint for done. It is enough that one of
    the processes that train together is told to stop: after each step they ask each other.
    """

    SIGNALS = (signal.SIGINT, *system.STOP)

    def __init__(self, path: Path, every: int) -> None:
        self.path, self.every, self.asked = path, every, 0

    def __enter__(self) -> SignalCheckpoint:
        self.before: dict[int, Any] = {number: signal.getsignal(number) for number in self.SIGNALS}
        self._listen()
        return self

    def __exit__(self, *_: Any) -> None:
        self._set(self.before)

    def _listen(self) -> None:
        self._set(dict.fromkeys(self.SIGNALS, self._ask))

    def _set(self, handlers: dict[int, Any]) -> None:
        with contextlib.suppress(ValueError):  # only a main thread may handle signals
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            raise Interrupted(signal.Signals(number).name)
        self.asked = number

    def on_train_start(self, *_: Any) -> None:
        self._listen()  # again: Lightning's own handler waits for the other processes, which may not have been told

    def on_validation_start(self, *_: Any) -> None:
        self._listen()

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        if not self.asked and trainer.world_size == 1 and trainer.global_step % self.every:
            return  # nothing is due, which is soon seen
        loop = trainer.fit_loop
        if not loop._should_accumulate() and not loop.epoch_loop._should_check_val_fx(
            loop._data_fetcher
        ):
            self._step_done(trainer, module)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if trainer.state.fn == "fit":
            self._step_done(trainer, module)

    def _step_done(self, trainer: Any, module: Any) -> None:
        asked = self.asked
        if trainer.world_size > 1:  # Lightning, too, waits for the others at every step
            asked = int(
                trainer.strategy.reduce(torch.tensor(asked, device=module.device), reduce_op="max")
            )
        if asked or trainer.global_step % self.every == 0:
            with module.evaluation_weights():
                trainer.save_checkpoint(self.path)
        if asked:
            raise Interrupted(signal.Signals(asked).name, agreed=True)
