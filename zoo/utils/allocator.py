"""The memory of this process, set up by the command line that owns it."""

from __future__ import annotations

import contextlib
import ctypes
import gc

TRIM_THRESHOLD, MMAP_THRESHOLD, MOST = -1, -3, 2**31 - 1  # of glibc's malloc.h
# new ones between two looks for garbage in circles; a small model's step makes more than Python's
# 700
OBJECTS = 10_000


def keep_freed() -> None:
    """Let a step find the memory that the one before has freed, and be stopped by the garbage
    collector less often.

    glibc is told to keep large buffers instead of returning them to the kernel, whose page faults
    are what large models on a CPU wait for; elsewhere that part does nothing. To be called before
    the first large allocation.
    """
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for threshold in (TRIM_THRESHOLD, MMAP_THRESHOLD):
            mallopt(threshold, MOST)
