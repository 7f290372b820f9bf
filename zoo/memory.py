"""The memory of this process."""

from __future__ import annotations

import contextlib
import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, MOST = -1, -3, 2**31 - 1  # of glibc's malloc.h


def keep_freed() -> None:
    """Tell glibc to keep large buffers for the next step instead of returning them to the kernel after each.

    Its page faults are what large models on a CPU wait for; elsewhere this does nothing. To be called before the first large
    allocation, by the command line that owns the process.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for threshold in (TRIM_THRESHOLD, MMAP_THRESHOLD):
            mallopt(threshold, MOST)
