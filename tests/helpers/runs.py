"""Runs so small that each takes about a second, and what they leave."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.checkpoints import saving
from zoo.training import callbacks
from zoo.utils import files

TINY = [
    "arch.dim=32",
    "arch.layers=2",
    "arch.heads=2",
    "arch.length=32",
    "loader.batch_size=4",
    "schedule.warmup=2",
    "trainer.max_steps=8",
    "trainer.log_every=2",
    "trainer.eval_every=4",
    "trainer.checkpoint_every=4",
    "trainer.accelerator=cpu",
    "trainer.threads=1",
    "logger=none",
    "data.val_fraction=0.1",
    "data.test_fraction=0.1",
]


def summary(folder: Path | str) -> dict[str, Any]:
    return json.loads((Path(folder) / "summary.json").read_text(encoding="utf-8"))


Train = Callable[..., dict[str, Any]]


def weights(folder: Path | str, name: str = "last") -> dict[str, torch.Tensor]:
    return torch.load(Path(folder) / "checkpoints" / f"{name}.ckpt", weights_only=True)[
        "state_dict"
    ]


def losses(folder: Path | str) -> list[tuple[str, str, str]]:
    with (Path(folder) / "metrics.csv").open(encoding="utf-8") as file:
        return [(row["step"], row["train/loss"], row["val/loss"]) for row in csv.DictReader(file)]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def when(step: int, act: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something in the middle of training, at the end of a step."""
    before = callbacks.LossLogger.on_train_batch_end

    def watch(self: Any, trainer: Any, *rest: Any) -> None:
        before(self, trainer, *rest)
        if trainer.global_step == step:
            act(trainer)

    monkeypatch.setattr(callbacks.LossLogger, "on_train_batch_end", watch)


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch owned",)


def in_shards(path: Path, count: int) -> Path:
    """Put a checkpoint of so many processes in the place of one; returns their folder."""
    checkpoint, folder = torch.load(path, weights_only=True), path.with_name(f".{path.name}.shards")
    for rank in range(count):
        state = {
            name: saving.rows(weight.chunk(count)[rank]) if weight.ndim == 2 else weight
            for name, weight in checkpoint["state_dict"].items()
        }
        files.write_atomically(
            folder / f"{rank}.pt",
            saving.dumps({**checkpoint, "state_dict": state, "parts": count}),
        )
    path.unlink()
    path.symlink_to(folder.name)
    return folder
