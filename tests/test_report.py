"""The table of a sweep, also where a run left less than a whole summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ablations import report

METRICS = {"val/loss": 1.5, "val/bits_per_byte": 2.0}


def shown(folder: Path, summaries: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> str:
    for number, summary in enumerate(summaries):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    report.show(folder)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"metrics": None},
        {"metrics": {"val/loss": None}},
        {"overrides": None},
        {"status": [1]},
        {"metrics": [1]},
        {"data": "x"},
        {"versions": 3},
    ],
)
def test_a_summary_that_lacks_something_hides_no_other(
    odd: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {
        "status": "finished",
        "overrides": ["norm=rms", "seed=0"],
        "metrics": METRICS,
        "parameters": 7,
    }
    out = shown(tmp_path, [whole, {"status": "finished", "overrides": ["norm=rms"]} | odd], capsys)
    assert "1.5000" in out


def test_words_are_shown_as_they_were_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown(
        tmp_path / "[/red]", [{"overrides": ["data.path=[/blue]"], "status": "failed"}], capsys
    )
    assert "[/red]" in out.replace("\n", "")
    assert "data.path=[/blue]" in out
