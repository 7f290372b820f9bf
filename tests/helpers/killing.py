"""Runs that are killed: each in a process forked from one that has imported everything, so that
hundreds are affordable.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint

from zoo import config
from zoo.launch.run_spec import RunSpec
from zoo.tracking import metrics_file
from zoo.training import callbacks, module, runner, signals

config.discover()  # in the process that the others are forked from, too
Act = Callable[[], None]


def trained(given: config.Config, folder: Path, at: int = 0) -> int:
    """Train in a folder, in a process that kills itself at its moment number `at`, from 1; how
    many moments it saw, or 0.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    here, there = server.Pipe(duplex=False)
    process = server.Process(target=_train, args=(given, folder, at, there))
    process.start()
    there.close()
    process.join(120)
    assert process.pid
    with contextlib.suppress(ProcessLookupError):  # where nothing is left of it
        os.killpg(
            process.pid, signal.SIGKILL
        )  # its workers: their parent is a server, which does not end with it
    if process.exitcode is None:
        process.kill()
        raise TimeoutError("the run hangs")
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the run ended with {process.exitcode}")
    return here.recv() if process.exitcode == 0 else 0


def _train(given: config.Config, folder: Path, at: int, report: Any) -> None:
    seen = 0

    def moment(first: Act = lambda: None) -> None:
        nonlocal seen
        seen += 1
        if seen == at:
            first()
            os.kill(os.getpid(), signal.SIGKILL)

    os.setpgrp()
    multiprocessing.set_start_method(
        "fork", force=True
    )  # of its workers; the server's children would begin anew with imports
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    _watch(moment)
    runner.run(RunSpec(given), folder)
    report.send(seen)


def _watch(moment: Callable[..., None]) -> None:
    """Let a moment be whatever changes the run's state, or its folder: before, in the middle,
    and after.
    """

    def around(owner: Any, name: str, half: Callable[..., Act] | None = None) -> None:
        before = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            moment(*([half(*given)] if half else []))
            result = before(*given, **named)
            moment()
            return result

        setattr(owner, name, watched)

    for name in (
        "training_step",
        "on_before_optimizer_step",
        "validation_step",
        "on_validation_epoch_end",
    ):
        around(module.LMModule, name)
    around(callbacks.LossLogger, "on_train_batch_end")
    around(metrics_file.MetricsFile, "log_metrics")
    around(signals.SignalCheckpoint, "on_train_batch_end")
    around(signals.SignalCheckpoint, "on_validation_end")
    around(ModelCheckpoint, "on_validation_end")
    around(os, "fsync", lambda file: lambda: os.ftruncate(file, os.fstat(file).st_size // 2))
    around(os, "replace")
