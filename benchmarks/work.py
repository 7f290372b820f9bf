"""A candidate in a process of its own: it takes its turn when asked, so that candidates alternate and share no allocator."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import platform
import sys
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch

from zoo.utils import system

SPAWN = multiprocessing.get_context("spawn")
WARM_UP = 3
M_MMAP_THRESHOLD = -3  # of glibc's mallopt
UNITS = {"peak memory": "MiB"}


class Pace:
    """Called before each step: waits to be told how many to take, and answers with the CPU seconds that they took."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.left, self.started = pipe, 0, 0.0

    def __call__(self) -> None:
        if not self.left:
            if self.started:
                self.pipe.send(time.process_time() - self.started)
            self.left = self.pipe.recv()
            if not self.left:
                raise SystemExit
            gc.collect()
            self.started = time.process_time()
        self.left -= 1


def serve(
    pipe: Connection, suite: str, measure: str, name: str, shape: Any, compiled: bool
) -> None:
    """Send what the first steps return, or why there is nothing to measure; then step as `Pace` is told."""
    from benchmarks.peers import Missing
    from benchmarks.suites import SUITES, Loop

    _prepare(suite, name)
    try:
        step = SUITES[suite].candidates[name](measure, shape)
        if isinstance(step, Loop):
            pipe.send([])
            step.run(Pace(pipe))
            return
        step = torch.compile(step) if compiled else step
        pipe.send([step().double().numpy() for _ in range(WARM_UP)])
    except (ImportError, Missing) as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pace = Pace(pipe)
    while True:
        pace()
        step()


class Worker:
    """The other end of `serve`, which is under way when this is made, and done with its first steps after `ready`.

    `values` are what they returned; `refused` says why there are none.
    """

    def __init__(self, *what: Any) -> None:
        self.pipe, other = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(other, *what), daemon=True)
        self.process.start()
        other.close()
        self.refused: str | None = None
        self.values: list[Any] = []

    def ready(self) -> None:
        found = self.pipe.recv()
        self.refused, self.values = (found, []) if isinstance(found, str) else (None, found)

    def seconds(self, steps: int) -> float:
        """CPU seconds of so many steps."""
        self.pipe.send(steps)
        return float(self.pipe.recv())

    def stop(self) -> None:
        if self.refused is None:
            self.pipe.send(0)
        self.process.join()


def _prepare(suite: str, name: str) -> None:
    """One thread; the zoo's candidates set up their process as zoo.train does, the others as their users find it."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if name.startswith("zoo") or suite == "lightning":
        from zoo.utils import allocator

        allocator.keep_freed()


def can_measure_memory() -> bool:
    return platform.libc_ver()[0] == "glibc" and sys.platform == "linux"


def peak_mib(suite: str, measure: str, name: str, shape: Any) -> float:
    """MiB that a candidate's model, optimiser and steps add at their peak. To be called in a fresh process."""
    from benchmarks.suites import SUITES

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    candidate: Any = SUITES[suite].candidates[name]
    candidate(
        measure, shape.tiny()
    )()  # what is imported or made on first use is no part of the figure
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallopt(
        M_MMAP_THRESHOLD, 2**16
    )  # large tensors have pages of their own: the figure is what is alive
    libc.malloc_trim(0)
    before = psutil.Process().memory_info().rss
    step = candidate(measure, shape)
    step()  # the optimiser makes its state
    gc.collect()
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # Linux counts the peak anew from here on
    for _ in range(3):
        step()
    return (system.peak_memory() - before) / 2**20
