"""Progress: long work shows what it is, how far and how fast; quick work shows nothing."""

from __future__ import annotations

import ast
import io
import itertools
import re
import shlex
import threading
from pathlib import Path

import pytest

from zoo import errors
from zoo.utils import progress

ROOT = Path(__file__).resolve().parents[1]


class Stream(io.StringIO):
    """A stream that lets a test wait for what is written."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal, self.flushed = terminal, threading.Event()

    def isatty(self) -> bool:
        return self.terminal

    def flush(self) -> None:
        self.flushed.set()


def shown_progress(monkeypatch: pytest.MonkeyPatch, terminal: bool, total: int = 0) -> str:
    monkeypatch.setattr(progress, "QUICK", 0.0)
    stream = Stream(terminal)
    with progress.doing("reading", total, stream) as advance:
        advance(total // 2)
        assert stream.flushed.wait(60)
    return stream.getvalue()


def test_progress_without_a_terminal_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_progress(monkeypatch, terminal=False) == "reading …\n"
    assert "\x1b" not in shown_progress(monkeypatch, terminal=False, total=10_000_000)


def test_progress_on_bytes_shows_position_and_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (False, True):
        line = shown_progress(monkeypatch, terminal, total=10_000_000)
        assert "of 10.0 MB, " in line
        assert "MB/s" in line


def test_progress_line_is_cleared_from_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = shown_progress(monkeypatch, terminal=True)
    assert shown.startswith("\r\x1b[Kreading")
    assert shown.endswith("\r\x1b[K")
    assert "\n" not in shown


def test_quick_work_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUICK", threading.TIMEOUT_MAX)
    stream = Stream(terminal=True)
    with progress.doing("reading", stream=stream):
        pass
    assert stream.getvalue() == ""


def test_only_rank_zero_shows_progress_and_a_closed_stream_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "QUICK", 0.0)
    closed = io.StringIO()
    closed.close()
    with progress.doing("reading", stream=closed):
        pass
    monkeypatch.setenv("LOCAL_RANK", "1")
    before = threading.active_count()
    with progress.doing("reading"):
        assert threading.active_count() == before


def test_printed_commands_are_quoted_by_one_function() -> None:
    """A value in it comes from registry.command or shlex, which quote it."""
    by_hand = []
    for path in [
        path
        for top in ("zoo", "ablations", "hydra_plugins")
        for path in ROOT.glob(f"{top}/**/*.py")
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else []
            for part, value in itertools.pairwise(parts):
                quoted = isinstance(value, ast.FormattedValue) and ast.unparse(
                    value.value
                ).startswith("shlex.")
                given = (
                    isinstance(part, ast.Constant)
                    and isinstance(value, ast.FormattedValue)
                    and not quoted
                )
                text = part.value if given else ""
                if re.search(
                    r"^(?!usage: ).*(python -m \S+|wandb (sync|leet|sweep))( \S+)* \S*$", str(text)
                ):
                    by_hand.append(f"{path.name}:{node.lineno}")
    assert by_hand == [], "use zoo.registry.command"


@pytest.mark.parametrize("path", ["my runs/a b", "it's", "$HOME", "a;b", "*", 'say "x"', "Bücher"])
def test_printed_command_survives_shell_parsing(path: str) -> None:
    line = errors.command("zoo.generate", f"ckpt={path}", 'prompt="def "')
    assert shlex.split(line) == ["python", "-m", "zoo.generate", f"ckpt={path}", 'prompt="def "']
