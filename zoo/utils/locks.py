"""What one process has to itself, until it ends in whatever way: the folder of a run, one of several GPUs."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from zoo.errors import ZooError

_held: list[IO[str]] = []


def take(path: Path, wait: bool = False) -> IO[str] | None:
    """The opened file by which this process, and no other, has what the path stands for; None where another has it.

    With `wait` it is waited for.
    """
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        lock.close()
        return None
    _held.append(lock)
    return lock


def leave(lock: IO[str]) -> None:
    _held.remove(lock)
    lock.close()


def _forget() -> None:
    for lock in _held:
        lock.close()


os.register_at_fork(
    after_in_child=_forget
)  # the processes that read data outlive by seconds one that is killed


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Two processes that train in one folder would mix their runs. Raises ZooError where another does."""
    lock = take(folder / ".lock")
    if lock is None:
        raise ZooError(
            f"another process is training in {folder}: wait for it, or choose another hydra.run.dir"
        )
    try:
        yield
    finally:
        leave(lock)


def alone_on_a_gpu(settings: Mapping[str, Any]) -> bool:
    """Whether a run takes one of several GPUs, so that it matters which."""
    one = settings["devices"] == settings["nodes"] == 1 and settings["accelerator"] != "cpu"
    return one and torch.cuda.device_count() > 1


@functools.cache
def free_gpu() -> int:
    """The first GPU that no other process of this machine has taken so; where all are taken, one of them.

    So the jobs of a sweep spread, whatever launches them.
    """
    shown = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    for index in range(torch.cuda.device_count()):
        if take(
            Path(tempfile.gettempdir())
            / f"zoo-gpu-{os.getuid()}-{shown[index] if shown else index}"
        ):
            return index
    return os.getpid() % torch.cuda.device_count()
