"""Run a candidate in its own process, which steps when asked.

So candidates alternate and share no allocator.
"""

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

from benchmarks.shapes import Shape
from zoo.utils import system

SPAWN = multiprocessing.get_context("spawn")
WARM_UP = 3  # steps
M_MMAP_THRESHOLD = -3  # of glibc's mallopt


class Pace:
    """Called before each step: receives how many to take, and sends the CPU seconds they took."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.left = 0
        self.started = 0.0

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
    pipe: Connection, suite: str, measure: str, name: str, shape: Shape, compiled: bool
) -> None:
    """Send what the first steps return, or why nothing can be measured; then step as asked."""
    from benchmarks.candidates import Loop
    from benchmarks.peers import Missing
    from benchmarks.suites import SUITES

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
    """A process that runs `serve`, started at once; its first steps are done after `ready`.

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
        answer = self.pipe.recv()
        if isinstance(answer, str):
            self.refused = answer
        else:
            self.values = answer

    def seconds(self, steps: int) -> float:
        """CPU seconds of this many steps."""
        self.pipe.send(steps)
        return float(self.pipe.recv())

    def stop(self) -> None:
        if self.refused is None:
            self.pipe.send(0)
        self.process.join()


def _prepare(suite: str, name: str) -> None:
    """Use one thread; set up the process of the zoo's candidates as zoo.train does."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if name.startswith("zoo") or suite == "lightning":
        from zoo.utils import allocator

        allocator.keep_freed()


def can_measure_memory() -> bool:
    return platform.libc_ver()[0] == "glibc" and sys.platform == "linux"


def peak_mib(suite: str, measure: str, name: str, shape: Shape) -> float:
    """Peak MiB that a candidate's model, optimiser and steps add. Call it in a fresh process."""
    from benchmarks.suites import SUITES

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    candidate: Any = SUITES[suite].candidates[name]
    # What is imported or allocated on first use is no part of the figure.
    candidate(measure, shape.tiny())()
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 2**16)  # large tensors get their own pages: count only live ones
    libc.malloc_trim(0)
    before = psutil.Process().memory_info().rss
    step = candidate(measure, shape)
    step()  # the optimiser makes its state
    gc.collect()
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak on Linux
    for _ in range(3):
        step()
    return (system.peak_memory() - before) / 2**20
