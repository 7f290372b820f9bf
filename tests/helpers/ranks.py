"""Call a function in several processes at once, each with its rank."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.helpers.commands import start
from tests.helpers.modules import ROOT


def in_ranks(function: Callable[[int, Path], None], folder: Path, count: int = 2) -> None:
    """Call a module's function with each rank and the folder; fails where one fails, or they
    hang.
    """
    line = [sys.executable, "-m", __name__, function.__module__, function.__name__]
    processes = [
        start(
            [*line, str(rank), str(folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for rank in range(count)
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert [process.returncode for process in processes] == [0] * count, "\n".join(said)


if __name__ == "__main__":
    module, function, rank, folder = sys.argv[1:]
    getattr(importlib.import_module(module), function)(int(rank), Path(folder))
