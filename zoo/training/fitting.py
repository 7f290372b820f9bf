"""Fits the model of a run, evaluates it, and explains what ends it early."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import LambdaCallback

from zoo.config import Config
from zoo.cost import memory_check
from zoo.data.datamodule import Data, is_dead_worker, raise_dead_worker_in_next
from zoo.errors import ZooError, first_line
from zoo.tracking.record import RunRecord
from zoo.training import monitors
from zoo.training import trainer as trainers
from zoo.training.callbacks import LossLogger, SeedEverything
from zoo.training.module import LMModule
from zoo.training.resume import ResumePoint
from zoo.training.signals import SignalCheckpoint
from zoo.utils import distributed, system


def fit(
    config: Config,
    record: RunRecord,
    module: LMModule,
    data: Data,
    start: ResumePoint,
    loss_logger: LossLogger,
) -> lightning.Trainer:
    """Train to the last step, evaluate, and record how far it came, also where it fails."""
    folder, begun = record.folder, time.perf_counter()
    last = folder / "checkpoints" / "last.ckpt"
    with (
        SignalCheckpoint(last, config["trainer"]["checkpoint_every"]) as stopper,
        memory_check.told_of(config),
    ):
        callbacks = _callbacks(config, record, loss_logger)
        trainer = trainers.build(
            config, folder, record.summary, loss_logger, callbacks, stopper, start.step
        )
        # before the fit, too: Lightning restores this at its end, before the error is looked at
        raise_dead_worker_in_next()
        try:
            _fit_and_evaluate(trainer, config, module, data, start, last)
        except BaseException as error:
            _kill_other_ranks(trainer, error)
            _explain(error)
            raise
        finally:
            seconds = time.perf_counter() - begun
            record.summary.update(_progress(config, record, trainer, loss_logger, seconds))
    return trainer


def _fit_and_evaluate(
    trainer: lightning.Trainer,
    config: Config,
    module: LMModule,
    data: Data,
    start: ResumePoint,
    last: Path,
) -> None:
    settings = config["trainer"]
    checkpoint = str(start.path) if start.step else None
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    step = trainer.global_step
    if step > start.step and step % settings["checkpoint_every"]:
        trainer.save_checkpoint(last)
    evaluated = step % trainers.eval_every(settings) == 0
    if not evaluated or "val/loss" not in trainer.callback_metrics:
        trainer.validate(module, datamodule=data, verbose=False)


def _callbacks(
    config: Config, record: RunRecord, loss_logger: LossLogger
) -> list[lightning.Callback]:
    settings = config["trainer"]
    starting = LambdaCallback(
        on_fit_start=lambda *_: use_threads(config),
        on_train_start=raise_dead_worker_in_next,
    )
    callbacks = [
        *monitors.configured(settings, loss_logger, record.summary["flops_per_token"]),
        SeedEverything(config["seed"]),
        starting,
    ]
    if distributed.is_rank_zero():  # a resumed run has what is configured now from here on
        callbacks.append(LambdaCallback(on_train_start=lambda *_: record.write_config()))
    return callbacks


def _kill_other_ranks(trainer: lightning.Trainer, error: BaseException) -> None:
    """End the processes that this one launched, which would wait for it, unless they end too."""
    launcher: Any = trainer.strategy.launcher
    if launcher is not None and not getattr(error, "agreed", False):
        launcher.kill(system.KILL)


def _explain(error: BaseException) -> None:
    """Raises ZooError where the cause of an error is known."""
    cause = error.__context__
    if isinstance(cause, ZooError) and not isinstance(error, ZooError):
        raise cause from None  # Lightning's clean-up failed where no batch had been read
    if isinstance(error, torch.distributed.DistNetworkError | torch.distributed.DistStoreError):
        raise ZooError(
            f"the ranks cannot reach each other ({first_line(error)}): unset MASTER_ADDR and"
            " MASTER_PORT, or give a port that is free"
        ) from error
    if is_dead_worker(error):
        raise ZooError(
            f"a data worker died ({first_line(error).rstrip('. ')}): where memory was short, lower"
            " loader.workers; then resume by resume=auto"
        ) from error


def _progress(
    config: Config,
    record: RunRecord,
    trainer: lightning.Trainer,
    loss_logger: LossLogger,
    seconds: float,
) -> dict[str, Any]:
    """How far a run has come, and how fast."""
    loader, step = config["loader"], trainer.global_step
    speed = (
        loss_logger.tokens / loss_logger.training_seconds if loss_logger.training_seconds else None
    )
    return {
        "steps": step,
        "tokens": step * loader["batch_size"] * loader["length"],
        "tokens_per_second": speed,
        "seconds": seconds,
        "peak_memory_bytes": monitors.peak_memory(),
        "skipped_steps": monitors.skipped_steps(trainer),
        "mfu": monitors.mfu(speed, record.summary["flops_per_token"], trainer),
    }


def use_threads(config: Config) -> None:
    """Set the number of threads; again when training starts, as Lightning sets it on launching."""
    if config["trainer"]["threads"]:
        torch.set_num_threads(config["trainer"]["threads"])
