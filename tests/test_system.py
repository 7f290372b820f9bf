"""What only some systems have is done without on the others, which are simulated here."""

from __future__ import annotations

import ctypes
import re
import runpy
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from zoo.data import datamodule
from zoo.utils import allocator, system

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("zoo", "ablations", "hydra_plugins", "benchmarks", "tests")
LACKING = r"fcntl|posix|pty|resource|termios|tty"  # on Windows


def naming(pattern: str, *folders: str) -> list[str]:
    """The files of these folders in which a line matches."""
    paths = [path for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")]
    assert len(paths) > 50
    search = re.compile(pattern, re.MULTILINE).search
    return [path.name for path in paths if search(path.read_text(encoding="utf-8"))]


def test_nothing_imports_a_module_that_windows_lacks() -> None:
    assert naming(rf"^\s*(import|from) ({LACKING})\b", *FOLDERS) == []


def test_signals_that_windows_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert system.STOP == (signal.SIGTERM, signal.SIGUSR1)
    assert system.KILL == signal.SIGKILL
    for name in ("SIGUSR1", "SIGKILL", "SIGCHLD"):
        monkeypatch.delattr(signal, name)
    elsewhere = runpy.run_path(system.__file__)
    assert elsewhere["STOP"] == (signal.SIGTERM,)
    assert elsewhere["KILL"] == signal.SIGTERM
    datamodule.raise_dead_worker_in_next()


def test_signals_that_windows_lacks_are_named_in_one_place() -> None:
    assert naming(r"\bsignal\.SIG(KILL|USR1|USR2|HUP|ALRM)\b", "zoo", "ablations") == []


@pytest.mark.parametrize("error", [FileNotFoundError, AttributeError], ids=["no file", "no name"])
def test_allocator_is_left_alone_without_glibc(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise error(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    allocator.keep_freed()


def test_peak_memory_is_the_most_that_was_resident() -> None:
    before = system.peak_memory()
    lump = bytearray(2 * before)
    del lump
    assert system.peak_memory() > 2 * before


@pytest.mark.parametrize(
    ("memory", "expected"),
    [(SimpleNamespace(rss=5, peak_wset=7), 7), (SimpleNamespace(rss=5), 5)],
    ids=["windows", "macos"],
)
def test_peak_memory_without_proc(
    memory: Any, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "STATUS", tmp_path / "none")
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: memory)
    assert system.peak_memory() == expected


def test_free_memory_is_the_least_of_machine_and_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, used = tmp_path / "limit", tmp_path / "used"
    monkeypatch.setattr(system, "LIMITS", (limit, limit))
    monkeypatch.setattr(system, "USED", (used, used))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    assert system.free_memory() == 1000, "no container"
    limit.write_text("max\n", encoding="ascii")
    used.write_text("10\n", encoding="ascii")
    assert system.free_memory() == 1000, "a container without a limit"
    limit.write_text("500\n", encoding="ascii")
    assert system.free_memory() == 490

    def unreadable() -> Any:
        raise FileNotFoundError("/proc/meminfo")

    limit.unlink()
    monkeypatch.setattr(psutil, "virtual_memory", unreadable)
    assert system.free_memory() is None
