"""Ask the operating system: which signals it has, how much memory is free, how much this process has used.

What only some systems tell is passed over on the others, as each function says.
"""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psutil

STOP = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
)  # Windows has no SIGUSR1, which Slurm and others send before the time of a job is over
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows ends a process at once by either
STATUS = Path("/proc/self/status")  # Linux
LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)  # of a container, on Linux
USED = (
    Path("/sys/fs/cgroup/memory.current"),
    Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_memory() -> float | None:
    """Bytes of RAM that this process could still take, by the machine and on Linux by its container; None if unknown."""
    available: list[float] = []
    with contextlib.suppress(OSError):  # Linux without /proc
        available.append(float(psutil.virtual_memory().available))
    for limit, used in zip(LIMITS, USED, strict=True):
        with contextlib.suppress(OSError, ValueError):  # the limit can be the word `max`
            available.append(
                float(limit.read_text(encoding="ascii")) - float(used.read_text(encoding="ascii"))
            )
    return min(available, default=None)


def peak_memory() -> int:
    """The most bytes of RAM that this process has had; on macOS, which does not tell that, those that it has now."""
    with contextlib.suppress(OSError, StopIteration):
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    memory = psutil.Process().memory_info()
    return int(getattr(memory, "peak_wset", memory.rss))
