"""What a process has to itself."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import psutil
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
    lock.release()
    again = locks.take(tmp_path / ".lock")
    reader.kill()
    assert again is not None
    again.release()


def train(path: Path, worker: Any) -> None:
    """Hold a lock and have a worker, as a run does, until killed."""
    lock = locks.take(path)
    assert lock is not None
    reader = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    reader.start()
    worker.send(reader.pid)
    time.sleep(60)


def test_lock_ends_with_a_killed_process_though_its_worker_and_file_remain(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    run = fork.Process(target=train, args=(tmp_path / ".lock", theirs))
    run.start()
    assert ours.poll(30)
    worker = psutil.Process(ours.recv())
    try:
        assert locks.take(tmp_path / ".lock") is None, "another process has it"
        run.kill()
        run.join()
        assert worker.is_running()
        assert (tmp_path / ".lock").exists()
        with locks.locked(tmp_path / ".lock") as held:
            assert held
    finally:
        worker.kill()


def test_lock_stays_though_a_worker_ends(tmp_path: Path) -> None:
    """By its own end, at which Python clears away what it was born with."""
    with locks.locked(tmp_path / ".lock"):
        worker = multiprocessing.get_context("fork").Process(target=gc.collect)
        worker.start()
        worker.join()
        with locks.locked(tmp_path / ".lock") as again:
            assert not again


def test_file_that_was_left_behind_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("12345\nsomewhere\n", encoding="utf-8")
    with locks.locked(tmp_path / ".lock") as held:
        assert held


def test_each_run_on_one_of_several_gpus_takes_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(locks, "_kept", [])
    taken = [
        locks.free_gpu.__wrapped__() for _ in range(3)
    ]  # a lock is that of an opened file, as of another process
    assert taken[:2] == [0, 1]
    assert taken[2] in (0, 1), "more runs than GPUs share them"
    locks._kept.clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert locks.free_gpu.__wrapped__() == 0
    assert (tmp_path / f"zoo-gpu-{os.getuid()}-1").exists()
    alone = config.compose(["trainer.accelerator=gpu"])["trainer"]
    assert locks.alone_on_a_gpu(alone)
    assert not locks.alone_on_a_gpu(alone | {"accelerator": "cpu"})
    assert not locks.alone_on_a_gpu(alone | {"devices": 2})
