"""Advisory file locks (run folder, GPU)."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import BaseFileLock, FileLock, Timeout

from zoo.errors import ZooError

_kept: list[BaseFileLock] = []  # until the process ends; one that nothing refers to is released


def take(path: Path, wait: bool = False) -> BaseFileLock | None:
    """Lock what the path stands for, waiting for it if asked to; None where another process has it.

    The kernel holds the lock, so it ends with its process however that ends; the file itself stays
    and means nothing. A fork has no part in it: data workers outlive by seconds a process that is
    killed. Where a file system has no locks, filelock would write a file that means the lock, and
    outlive its process; that is an error instead.
    """
    lock = FileLock(path, blocking=wait, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


@contextlib.contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[bool]:
    """Lock what the path stands for until the end of the block; False where another process has
    it.
    """
    lock = take(path, wait)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Train in a folder as its only process; two would mix their runs. Raises ZooError where
    another does.
    """
    with locked(folder / ".lock") as alone:
        if not alone:
            raise ZooError(
                f"another process is training in {folder}: wait for it, or choose another"
                f" hydra.run.dir"
            )
        yield


def alone_on_a_gpu(settings: Mapping[str, Any]) -> bool:
    """Whether a run takes one of several GPUs, so that it matters which."""
    one = settings["devices"] == settings["nodes"] == 1 and settings["accelerator"] != "cpu"
    return one and torch.cuda.device_count() > 1


@functools.cache
def free_gpu() -> int:
    """The first GPU that no other process of this machine has taken so; where all are taken, one of
    them.

    So the jobs of a sweep spread, whatever launches them.
    """
    user = getattr(os, "getuid", os.getlogin)()  # Windows has names alone
    shown = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    for index in range(torch.cuda.device_count()):
        name = f"zoo-gpu-{user}-{shown[index] if shown else index}"
        if lock := take(Path(tempfile.gettempdir()) / name):
            _kept.append(lock)
            return index
    return os.getpid() % torch.cuda.device_count()
