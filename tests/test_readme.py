"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

from zoo import config, registry

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_menu_is_the_registry() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \|", README, re.MULTILINE)
    shown: dict[str, set[str]] = {}
    for groups, choices in rows:
        for group, names in zip(re.findall(r"\w+", groups), choices.split(";"), strict=True):
            shown[group] = {name.strip() for name in names.split(",")}
    config.discover()
    assert shown == {group: set(registry.entries(group)) for group in registry.groups()}


def test_every_line_that_it_tells_to_type_can_be_composed() -> None:
    lines = re.findall(r"python -m zoo\.train ([^#\n]*)", README)
    assert len(lines) > 5
    for line in lines:
        words = [word.strip("'`") for word in line.split() if "=" in word and not word.startswith(("hydra.", "("))]
        if "rsm" in line or "-m" in line.split():
            continue
        config.compose(words)
