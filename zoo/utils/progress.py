"""Say what a command is busy with while one waits: a line that is replaced on a terminal, lines elsewhere, nothing if quick."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from zoo.utils.distributed import is_rank_zero

QUICK = 0.5  # seconds; what takes less is not spoken of
TERMINAL, ELSEWHERE = (
    1.0,
    10.0,
)  # seconds between two states of the line on a terminal, and between two lines elsewhere


@contextlib.contextmanager
def doing(
    what: str, total: int = 0, stream: TextIO | None = None
) -> Iterator[Callable[[int], None]]:
    """Say what is done within it, if that takes more than a moment; on rank 0 only.

    Of work on `total` bytes it says how far it is and MB/s: the function that is yielded is told of each piece's bytes. The
    stream is standard output, but for commands whose output is for programs.
    """
    stream, begun, over, done = stream or sys.stdout, time.monotonic(), threading.Event(), 0

    def advance(size: int) -> None:
        nonlocal done
        done += size

    def state(terminal: bool) -> str:
        seconds = time.monotonic() - begun
        if total:
            return f"{what}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB, {done / 1e6 / seconds:,.1f} MB/s"
        return f"{what} … {seconds:.0f} s" if terminal else f"{what} …"

    def tell() -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            terminal, wait = stream.isatty(), QUICK
            while not over.wait(wait):
                stream.write(f"\r\x1b[K{state(True)}" if terminal else f"{state(False)}\n")
                stream.flush()
                wait = TERMINAL if terminal else ELSEWHERE if total else threading.TIMEOUT_MAX
            if terminal and time.monotonic() - begun > QUICK:
                stream.write("\r\x1b[K")
                stream.flush()

    thread = threading.Thread(target=tell, daemon=True)
    if is_rank_zero():
        thread.start()
    try:
        yield advance
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()
