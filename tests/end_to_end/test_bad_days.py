"""What goes wrong around a run: nothing that was there is lost, a sentence says what to do, and the run goes on to the bit."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pwd
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from tests.end_to_end.conftest import read_wandb, summary
from tests.end_to_end.test_command import Refused, refused  # noqa: F401  a fixture
from tests.end_to_end.test_run import Hostile, Train, equal, losses, weights, when
from zoo import config, generate, run, storage, train
from zoo.data import cache
from zoo.registry import ZooError

TABLE = Path(__file__).parents[2] / "docs" / "bad_days.md"


def same(one: str, other: str) -> bool:
    return equal(weights(one), weights(other)) and losses(one) == losses(other)


def whole(folder: Path | str) -> dict[str, Any]:
    """Every file of a run that can be read, read."""
    files = [path for path in Path(folder).rglob("*") if path.suffix in (".yaml", ".json", ".csv", ".ckpt")]
    for path in files:
        storage.read_checkpoint(path) if path.suffix == ".ckpt" else OmegaConf.load(path) if path.suffix == ".yaml" else None
    return {path.name: path.read_bytes() for path in files}


class Full:
    """A disk that is full from the n-th write of a file on, of which half still finds room."""

    def __init__(self, name: str, nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.left = name, nth
        self.real = os.fsync
        monkeypatch.setattr(os, "fsync", self.write)

    def write(self, descriptor: int) -> None:
        if f".{self.name}." in os.readlink(f"/proc/self/fd/{descriptor}"):
            self.left -= 1
            if not self.left:
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.real(descriptor)


@pytest.mark.parametrize(("name", "nth"), [("last.ckpt", 2), ("best.ckpt", 1), ("metrics.csv", 3), ("summary.json", 4),
                                           ("config.yaml", 1)])
def test_a_disk_that_fills_up_costs_nothing_that_was_there(train: Train, monkeypatch: pytest.MonkeyPatch,
                                                           name: str, nth: int) -> None:
    train("whole")
    with monkeypatch.context() as patch:
        Full(name, nth, patch)
        with pytest.raises(OSError, match=rf"No space left.*{name}"):
            train("run")
    whole("run")
    assert not list(Path("run").rglob("*.tmp"))
    assert train("run", "resume=auto")["status"] == "finished"
    assert same("whole", "run")
