"""Commands as a person starts them, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess


def bounded(line: list[str], seconds: float = 280) -> subprocess.CompletedProcess[str]:
    """Run a command; where it hangs, it and all processes that it has started are killed, and the test fails."""
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, complained = process.communicate(timeout=seconds)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(line, process.returncode, said, complained)
