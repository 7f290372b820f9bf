"""Studies of a few runs, on the text and in the place of the tests of single runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.places import own_place, text, words

__all__ = ["own_place", "text", "words"]


@pytest.fixture
def study(tmp_path: Path, words: list[str]) -> Callable[..., str]:
    """Write a study of tiny runs; gives the word that names it."""

    def study(**content: Any) -> str:
        tiny = {
            "common": words,
            "factors": {"norm": ["norm=layer", "norm=rms"]},
            "seeds": 2,
            "match": "params",
            "margin": 0.05,
        }
        (tmp_path / "own.yaml").write_text(
            yaml.safe_dump(tiny | content, sort_keys=False), encoding="utf-8"
        )
        return f"study={tmp_path / 'own.yaml'}"

    return study


@pytest.fixture
def ablate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The command line in this process; gives its exit code, or what it says as it ends."""
    from ablations import run

    def ablate(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["ablations.run", *arguments])
        with pytest.raises(SystemExit) as ended:
            run.main()
        return ended.value.code

    return ablate
