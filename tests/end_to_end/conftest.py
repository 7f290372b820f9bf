"""Fixtures of runs so small that each takes about a second: in this process, or by a command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.commands import bounded
from tests.helpers.places import own_place, text, words

__all__ = ["own_place", "text", "words"]


@pytest.fixture
def train(words: list[str]) -> Callable[..., dict[str, Any]]:
    """Train in this process; gives the summary. Exceptions pass through."""
    from zoo import config
    from zoo.launch.run_spec import RunSpec
    from zoo.training import runner

    def train(folder: Path | str, *overrides: str) -> dict[str, Any]:
        Path(folder).mkdir(parents=True, exist_ok=True)
        spec = RunSpec(config.compose([*words, *overrides]), list(overrides))
        return runner.run(spec, Path(folder))

    return train


@pytest.fixture
def command(words: list[str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Train as a person would, in a process of its own; hangs are failures."""

    def command(
        *arguments: str, module: str = "zoo.train", tiny: bool = True, fresh: bool = False
    ) -> subprocess.CompletedProcess[str]:
        start = [module] if module.endswith(".py") else ["-m", module]
        return bounded([sys.executable, *start, *(words if tiny else []), *arguments], fresh=fresh)

    return command
