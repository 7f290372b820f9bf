"""Shows what a command is busy with: one updated line on a terminal, several lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from zoo.utils.distributed import is_rank_zero

QUICK = 0.5  # seconds; quicker work is not shown
TERMINAL = 1.0  # seconds between two updates of the line on a terminal
ELSEWHERE = 10.0  # seconds between two lines elsewhere


@contextlib.contextmanager
def doing(
    what: str, total: int = 0, stream: TextIO | None = None
) -> Iterator[Callable[[int], None]]:
    """Show what is being done in the block, if it takes more than a moment; on rank 0 only.

    For work on `total` bytes it shows how far it is and MB/s; the yielded function is called with
    the bytes of each piece. The stream is standard output, except in commands whose output is for
    programs.
    """
    stream, begun, over, done = stream or sys.stdout, time.monotonic(), threading.Event(), 0

    def advance(size: int) -> None:
        nonlocal done
        done += size

    def state(terminal: bool) -> str:
        seconds = time.monotonic() - begun
        if total:
            speed = done / 1e6 / seconds
            return f"{what}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB, {speed:,.1f} MB/s"
        return f"{what} … {seconds:.0f} s" if terminal else f"{what} …"

    def update() -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            terminal, wait = stream.isatty(), QUICK
            # Without a total, a second line would be the same as the first.
            elsewhere = ELSEWHERE if total else threading.TIMEOUT_MAX
            pause = TERMINAL if terminal else elsewhere
            while not over.wait(wait):
                stream.write(f"\r\x1b[K{state(True)}" if terminal else f"{state(False)}\n")
                stream.flush()
                wait = pause
            if terminal and time.monotonic() - begun > QUICK:
                stream.write("\r\x1b[K")
                stream.flush()

    thread = threading.Thread(target=update, daemon=True)
    if is_rank_zero():
        thread.start()
    try:
        yield advance
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()
