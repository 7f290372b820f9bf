"""A text of a few thousand lines, and runs so small that each takes about a second."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TINY = [
    "arch.dim=32",
    "arch.layers=2",
    "arch.heads=2",
    "arch.length=32",
    "loader.batch_size=4",
    "schedule.warmup=2",
    "trainer.max_steps=8",
    "trainer.log_every=2",
    "trainer.eval_every=4",
    "trainer.checkpoint_every=4",
    "trainer.accelerator=cpu",
    "trainer.threads=1",
    "logger=none",
    "data.val_fraction=0.1",
    "data.test_fraction=0.1",
]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small text files, the same on every machine."""
    folder = tmp_path_factory.mktemp("text")
    for number in range(40):
        lines = [f"{number} times {times} is {number * times}" for times in range(12)]
        (folder / f"{number}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def own_place(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each test in a folder of its own; one token cache for all; no key of the person who runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path_factory.getbasetemp() / "wandb"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


@pytest.fixture
def words(text: Path) -> list[str]:
    """The overrides of a tiny run on the text."""
    return ["data=text", f"data.path={text}", *TINY]


@pytest.fixture
def train(words: list[str]) -> Callable[..., dict[str, Any]]:
    """Train in this process; gives the summary. Exceptions pass through."""
    from zoo import config, run

    def train(folder: Path | str, *overrides: str) -> dict[str, Any]:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return run.run(config.compose([*words, *overrides]), Path(folder), list(overrides))

    return train


@pytest.fixture
def command(words: list[str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Train as a person would, in a process of its own; hangs are failures."""

    def command(
        *arguments: str, module: str = "zoo.train", tiny: bool = True
    ) -> subprocess.CompletedProcess[str]:
        start = [module] if module.endswith(".py") else ["-m", module]
        return bounded([sys.executable, *start, *(words if tiny else []), *arguments])

    return command


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


def summary(folder: Path | str) -> dict[str, Any]:
    return json.loads((Path(folder) / "summary.json").read_text(encoding="utf-8"))


def wandb_records(file: Path) -> Iterator[Any]:
    """What an offline run wrote: a log of 32 KiB blocks behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # all or the last piece of a record
            yield Record.FromString(whole)
            whole = b""


def read_wandb(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Configuration, history and exit code of an offline run."""
    config: dict[str, Any] = {}
    history: list[dict[str, Any]] = []
    code = -1
    for record in wandb_records(file):
        if record.HasField("run"):
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.HasField("history"):
            history.append(
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
            )
        if record.HasField("exit"):
            code = record.exit.exit_code
    return config, history, code
