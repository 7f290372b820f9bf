"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

from zoo import config
from zoo.components.__main__ import readme

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_menu_is_the_registry() -> None:
    """If this fails: python -m zoo.components --readme."""
    assert readme() in README


def test_every_line_that_it_tells_to_type_can_be_composed() -> None:
    lines = re.findall(r"python -m zoo\.train ([^#\n]*)", README)
    assert len(lines) > 5
    for line in lines:
        words = [
            word.strip("'`")
            for word in line.split()
            if "=" in word and not word.startswith(("hydra.", "("))
        ]
        if "rsm" in line or "-m" in line.split():
            continue
        config.compose(words)
