"""What a process has to itself."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo import config
from zoo.utils import locks


def read(reads: Any) -> None:
    reads.set()
    time.sleep(60)


def test_what_outlives_a_process_for_seconds_does_not_keep_its_folder(tmp_path: Path) -> None:
    """As the processes that read data outlive one that is killed."""
    lock = locks.take(tmp_path / ".lock")
    assert lock is not None
    assert locks.take(tmp_path / ".lock") is None
    fork = multiprocessing.get_context("fork")
    reads = fork.Event()
    reader = fork.Process(target=read, args=(reads,))
    reader.start()
    assert reads.wait(30)
    locks.leave(lock)
    again = locks.take(tmp_path / ".lock")
    reader.kill()
    assert again is not None
    locks.leave(again)


def test_each_run_on_one_of_several_gpus_takes_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(locks, "_held", [])
    taken = [
        locks.free_gpu.__wrapped__() for _ in range(3)
    ]  # a lock is that of an opened file, as of another process
    assert taken[:2] == [0, 1]
    assert taken[2] in (0, 1), "more runs than GPUs share them"
    locks._held.clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert locks.free_gpu.__wrapped__() == 0
    assert (tmp_path / f"zoo-gpu-{os.getuid()}-1").exists()
    alone = config.compose(["trainer.accelerator=gpu"])["trainer"]
    assert locks.alone_on_a_gpu(alone)
    assert not locks.alone_on_a_gpu(alone | {"accelerator": "cpu"})
    assert not locks.alone_on_a_gpu(alone | {"devices": 2})
