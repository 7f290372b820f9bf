"""Commands as a person starts them, in processes of their own."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.helpers import warm

Process = Any  # subprocess.Popen, or what behaves like it
server = functools.cache(warm.server)


def start(line: Sequence[str], fresh: bool = False, **options: Any) -> Process:
    """Start a command: in a fork of a process with the heavy imports, or a fresh one of the
    system's.
    """
    options = {"env": os.environ} | options  # without what readline has told the C library alone
    if not fresh and warm.possible(line, options):
        return warm.Warm(server(), line, **options)
    return subprocess.Popen(line, **options)


def bounded(
    line: Sequence[str], seconds: float = 280, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command; where it hangs, it and all processes that it has started are killed, and
    the test fails.
    """
    pipe = subprocess.PIPE
    process = start(line, fresh, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        said, complained = process.communicate(timeout=seconds)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(list(line), process.returncode, said, complained)
