"""Asks the operating system for signals, free memory and the memory this process has used.

What only some systems offer is left out on the others, as each function says.
"""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psutil

# Windows has no SIGUSR1, which Slurm and others send before a job's time is over.
STOP = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows ends a process at once by either
STATUS = Path("/proc/self/status")  # Linux
# Of a container, on Linux: cgroup version 2, and version 1.
LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
USED = (
    Path("/sys/fs/cgroup/memory.current"),
    Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_memory() -> float | None:
    """Bytes of RAM that this process could still take; None if unknown.

    The machine sets the limit, and on Linux the container.
    """
    available: list[float] = []
    with contextlib.suppress(OSError):  # Linux without /proc
        available.append(float(psutil.virtual_memory().available))
    for limit, used in zip(LIMITS, USED, strict=True):
        with contextlib.suppress(OSError, ValueError):  # the limit can be the word `max`
            limit_bytes = float(limit.read_text(encoding="ascii"))
            available.append(limit_bytes - float(used.read_text(encoding="ascii")))
    return min(available, default=None)


def peak_memory() -> int:
    """The most bytes of RAM that this process has used; on macOS, those that it uses now."""
    with contextlib.suppress(OSError, StopIteration):
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    memory = psutil.Process().memory_info()
    return int(getattr(memory, "peak_wset", memory.rss))
