"""Finds the checkpoint that a run is resumed from, and refuses one that does not fit it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from zoo import config as configuration
from zoo.checkpoints import reading, weights
from zoo.config import Config
from zoo.data.datamodule import Data
from zoo.errors import ZooError
from zoo.tracking.record import RunRecord
from zoo.utils import distributed

NEEDED = ("optimizer_states", "lr_schedulers", "loops")  # beside the weights
log = logging.getLogger("zoo")


@dataclass
class ResumePoint:
    """The newest intact checkpoint and its step, else None and 0; what is wrong with newer ones."""

    path: Path | None = None
    step: int = 0
    damaged: dict[Path, str] = field(default_factory=dict)


def find(folder: Path, model: nn.Module, config: Config, data: Data) -> ResumePoint:
    """Look through a folder of checkpoints, the newest first.

    Raises ZooError where all of them are damaged, and for an intact one that does not fit the run
    or must not be read.
    """
    damaged: dict[Path, str] = {}
    for name in ("last", "previous", "best"):
        path = folder / f"{name}.ckpt"
        if not os.path.lexists(path):
            continue
        try:
            checkpoint = _read(path, model, config)
        except reading.Damaged as error:
            damaged[path] = str(error)
            continue
        _check_fit(path, checkpoint, model, config, data)
        return ResumePoint(path, int(checkpoint["global_step"]), damaged)
    if damaged:
        raise ZooError(
            f"{'; '.join(damaged.values())}: there is no other, so delete {folder} to start anew,"
            " or choose another hydra.run.dir"
        )
    return ResumePoint()


def put_damaged_aside(point: ResumePoint, record: RunRecord) -> None:
    """Rename damaged checkpoints, which would else replace the intact one at the next save."""
    if not point.damaged:
        return
    note = f"{'; '.join(point.damaged.values())}: resuming from the one before, {point.path}"
    log.warning(note)
    record.update(note=note)
    if distributed.is_rank_zero():
        for path in point.damaged:
            path.replace(path.with_suffix(".damaged"))


def _read(path: Path, model: nn.Module, config: Config) -> dict[str, Any]:
    """Raises Damaged for a checkpoint that no run could be resumed from."""
    checkpoint = reading.read_checkpoint(path, whole=False)
    if config["trainer"]["strategy"] != "fsdp":  # there, each rank checks its share when loading
        weights.refuse_not_finite(weights.learned(checkpoint, model), path)
    for part in NEEDED:
        if not checkpoint.get(part):
            raise reading.Damaged(f"{path} is damaged: it has no {part}")
    return checkpoint


def _check_fit(
    path: Path, checkpoint: dict[str, Any], model: nn.Module, config: Config, data: Data
) -> None:
    """Raises ZooError for a checkpoint of another model, another configuration or other data."""
    weights.check_fit(model, weights.weights(checkpoint), str(path))
    stored = checkpoint["zoo"]["config"]
    if different := configuration.changed(config, stored):
        keys = ",".join(different)
        raise ZooError(
            f"{path} is of another configuration (different: {', '.join(different)}): choose"
            " another hydra.run.dir, or resume with what you change by naming it:"
            f" changing=[{keys}]"
        )
    before, now = stored["optim"]["name"], config["optim"]["name"]
    if before != now:
        raise ZooError(
            f"{path} holds the state of optim={before}, which optim={now} cannot resume: keep"
            f" optim={before}, or choose another hydra.run.dir"
        )
    step, most = checkpoint["global_step"], config["trainer"]["max_steps"]
    if step > most:
        raise ZooError(
            f"{path} is of step {step}, beyond trainer.max_steps={most}: give more steps, or choose"
            " another hydra.run.dir"
        )
    before_data = checkpoint["Data"]["fingerprint"]
    if checkpoint["Data"] != data.state_dict() and "data" not in config["changing"]:
        raise ZooError(
            f"{path} was made with other data (fingerprint {before_data[:12]}, now"
            f" {data.fingerprint[:12]}): bring them back, choose another hydra.run.dir, or"
            " resume with these by changing=[data]"
        )
