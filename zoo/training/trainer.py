"""Builds Lightning's Trainer for a run: devices, strategy, callbacks, loggers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from zoo import registry
from zoo.config import Config
from zoo.cost import gpus
from zoo.errors import ZooError, first_line
from zoo.tracking.metrics_file import MetricsFile
from zoo.training.callbacks import AtomicCheckpoints, BestCheckpoint, LossLogger, NoProfiler
from zoo.training.console import LogPrinter, ProgressBar
from zoo.training.fsdp import Sharded
from zoo.training.signals import SignalCheckpoint
from zoo.utils import distributed, library_warnings, locks
from zoo.utils.progress import doing

Settings = Mapping[str, Any]  # the options of `trainer`


def build(
    config: Config,
    folder: Path,
    summary: dict[str, Any],
    loss_logger: LossLogger,
    callbacks: Sequence[lightning.Callback],
    stopper: SignalCheckpoint,
    resume_step: int,
) -> lightning.Trainer:
    """The Trainer of a run, whose first callback is `loss_logger` and whose last saves checkpoints.

    Raises ZooError for what this machine has not, or would silently do otherwise.
    """
    settings = config["trainer"]
    _check_launched(settings)
    library_warnings.lightning()
    shows_bar = settings["progress"] and sys.stderr.isatty()
    own = [registry.build("callback", choice) for choice in config["callbacks"]]
    # in this order: last.ckpt holds the state of best.ckpt's callback
    savers = [_best_checkpoint(folder), stopper]
    console = (
        ProgressBar(loss_logger, settings["max_steps"]) if shows_bar else LogPrinter(loss_logger)
    )
    try:
        trainer = lightning.Trainer(
            accelerator=settings["accelerator"],
            devices=[locks.free_gpu()] if locks.alone_on_a_gpu(settings) else settings["devices"],
            num_nodes=settings["nodes"],
            strategy=_strategy(settings),
            precision=settings["precision"],
            max_steps=settings["max_steps"],
            max_epochs=-1,
            accumulate_grad_batches=settings["accumulate"],
            gradient_clip_val=settings["clip"],
            val_check_interval=eval_every(settings) * settings["accumulate"],
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            log_every_n_steps=settings["log_every"],
            callbacks=[loss_logger, *callbacks, *own, *savers, console],
            logger=_loggers(config, folder, summary, resume_step),
            plugins=[AtomicCheckpoints()],
            profiler=NoProfiler(),
            enable_model_summary=False,
            enable_progress_bar=shows_bar,
            use_distributed_sampler=False,
            default_root_dir=folder,
        )
    except (MisconfigurationException, ValueError) as error:  # no such accelerator or strategy
        no_gpu = "gpu" in first_line(error).lower()
        hint = ": where there is no GPU, choose trainer=cpu, ddp_sim or fsdp_sim" if no_gpu else ""
        raise ZooError(f"trainer: {first_line(error).rstrip('.!')}{hint}") from error
    if trainer.precision != settings["precision"]:  # whatever Lightning's reason is
        raise ZooError(
            f"trainer.precision={settings['precision']} would run as {trainer.precision} here:"
            " give that one"
        )
    return trainer


def eval_every(settings: Settings) -> int:
    """The steps between evaluations, at least one of which is within a run."""
    return int(min(settings["eval_every"], settings["max_steps"]))


def refuse_replacements(settings: Settings) -> None:
    """Raises ZooError for what Lightning would silently replace on this machine."""
    gpus.refuse_precision(settings["precision"])
    started, asked = int(os.environ.get("WORLD_SIZE", 1)), settings["devices"] * settings["nodes"]
    if started not in (1, asked):
        raise ZooError(
            f"torchrun has started {started} processes, but trainer.devices={settings['devices']}"
            f" and trainer.nodes={settings['nodes']} ask for {asked}, so that each would train for"
            " itself: give as many"
        )


def _check_launched(settings: Settings) -> None:
    launched = distributed.launched_externally() or "MASTER_ADDR" in os.environ
    if settings["nodes"] > 1 and not launched:
        raise ZooError(
            f"trainer.nodes={settings['nodes']} needs its processes started on each machine, by"
            " srun or torchrun: docs/cluster.md shows how"
        )


def _strategy(settings: Settings) -> Any:
    if settings["strategy"] == "fsdp":
        return Sharded(settings["devices"] * settings["nodes"])
    return settings["strategy"]


def _best_checkpoint(folder: Path) -> BestCheckpoint:
    return BestCheckpoint(
        str(folder.absolute() / "checkpoints"),
        "best",
        monitor="val/loss",
        save_top_k=1,
        enable_version_counter=False,
    )


def _loggers(
    config: Config, folder: Path, summary: dict[str, Any], resume_step: int
) -> list[Logger]:
    """metrics.csv, and on rank 0 the logger of the configuration."""
    loggers: list[Logger] = [MetricsFile(folder / "metrics.csv", resume_step)]
    if distributed.is_rank_zero():
        with doing("starting the logger"):
            logger = registry.build("logger", config["logger"], config, folder, summary)
        loggers += [] if logger is None else [logger]
    return loggers
