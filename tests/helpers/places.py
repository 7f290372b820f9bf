"""Fixtures of runs: a text of a few thousand lines, and a folder for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.runs import TINY


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
    """Each test in a folder of its own; one token cache for all; no key of the person who runs
    the tests.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path_factory.getbasetemp() / "wandb"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


@pytest.fixture
def words(text: Path) -> list[str]:
    """The overrides of a tiny run on the text."""
    return ["data=text", f"data.path={text}", *TINY]
