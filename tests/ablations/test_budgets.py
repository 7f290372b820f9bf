"""What stands beside a verdict of the arms' budgets: what they were matched by, and how far they
differ where they were not.
"""

from __future__ import annotations

import csv
import html
import json
from pathlib import Path
from typing import Any

import pytest

from ablations import plan, report, results
from ablations import study as studies
from ablations.report import figures
from ablations.results import budgets
from tests.helpers.studies import TINY, run, study

COST = {"parameters": 1000, "active": 1000, "training_flops": 6000, "tokens": 100}


@pytest.fixture(autouse=True)
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("curves", "cost", "positions", "forest"):
        monkeypatch.setattr(figures, name, lambda *_: "<svg/>")


def costing(
    folder: Path, match: str, costs: dict[str, Any], matched: str = "", **more: Any
) -> Path:
    """A study of which the arm `a` costs something else than the baseline."""
    study(folder, {"a": 0.3}, match=match, **more)
    content = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    content["arms"] = [
        {"name": "base", "levels": {}, "matched": ""} | COST,
        {"name": "a", "levels": {}, "matched": matched} | COST | costs,
    ]
    (folder / "study.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def remark(folder: Path) -> str:
    return budgets.remark(results.load(folder), "a")


@pytest.mark.parametrize(
    ("match", "costs", "matched", "said"),
    [
        (
            "none",
            {"parameters": 752, "active": 752, "training_flops": 5000},
            "",
            "Budgets were not matched: parameters −24.8 %, training FLOPs −16.7 %.",
        ),
        ("none", {"tokens": 200}, "", "Budgets were not matched: tokens +100.0 %."),
        ("none", {"parameters": 1009}, "", ""),
        (
            "params",
            {"parameters": 1004},
            "ffn.hidden=304",
            "Its parameters matched by ffn.hidden=304.",
        ),
        (
            "params",
            {"training_flops": 6300},
            "ffn.hidden 512 → 304",
            "Its parameters matched by ffn.hidden 512 → 304; what was not matched differs:"
            " training FLOPs +5.0 %.",
        ),
        (
            "active",
            {"parameters": 3000},
            "ffn.expert.hidden=64",
            "Its active parameters matched by ffn.expert.hidden=64; what was not matched differs:"
            " parameters +200.0 %.",
        ),
        ("params", {"active": 400}, "", "What was not matched differs: active parameters −60.0 %."),
        (
            "tokens",
            {},
            "trainer.max_steps 300 → 600",
            "Its tokens matched by trainer.max_steps 300 → 600.",
        ),
        ("params", {}, "", ""),
    ],
)
def test_what_budgets_have_in_common_stands_beside_the_verdict(
    match: str,
    costs: dict[str, Any],
    matched: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = costing(tmp_path / "s", match, costs, matched)
    assert remark(folder) == said
    report.show(folder)
    texts = {
        name: (folder / name).read_text(encoding="utf-8")
        for name in ("report.md", "report.html", "table.tex")
    }
    texts["screen"] = capsys.readouterr().out
    for name, text in texts.items():
        text = " ".join(html.unescape(text).replace("<wbr>", "").split())
        if name == "table.tex":
            text = (
                text.replace("$-$", "−")
                .replace(r"\%", "%")
                .replace(r"$\to$", "→")
                .replace(r"\_", "_")
            )
            assert (said in text) if said else "matched" not in text
        elif said:
            sentence = text.index("a is worse than base")
            assert said in text[sentence : sentence + 500], name
        else:
            assert "matched" not in text.split("The specification")[0], name
    rows = {
        row["arm"]: row
        for row in csv.DictReader((folder / "comparison.csv").open(encoding="utf-8"))
    }
    assert (rows["a"]["budget"], rows["base"]["budget"]) == (said, "")


def test_runs_that_nobody_planned_are_measured_by_themselves(tmp_path: Path) -> None:
    for number, (arm, size, tokens) in enumerate((("layer", 1000, 50), ("rms", 800, 100))):
        run(tmp_path / "s" / str(number), arm, 0, 2.0, parameters=size, tokens=tokens)
    assert budgets.remark(results.load(tmp_path / "s"), "norm=rms") == (
        "Budgets were not matched: parameters −20.0 %, training FLOPs +100.0 %, tokens +100.0 %."
    )


def test_seconds_are_compared_where_they_are_the_budget(tmp_path: Path) -> None:
    folder = costing(tmp_path / "s", "seconds", {})
    for path in folder.glob("a/*/summary.json"):
        path.write_text(
            json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"seconds": 4.5}),
            encoding="utf-8",
        )
    assert remark(folder) == "Budgets were not matched: seconds of training +50.0 %."


def test_a_plan_tells_the_report_what_it_matched_by(tmp_path: Path) -> None:
    """From a study to the sentence: what attention saves goes to the feed-forward."""
    content = {"name": "own", "common": TINY, "factors": {"attn": ["attn=mha", "attn=mqa"]}}
    for match, said in (
        ("params", "Its parameters matched by ffn.hidden"),
        ("none", "Budgets were not matched: parameters −"),
    ):
        made = plan.make(studies.parse(content | {"match": match}))
        runs = [results.Run(arm.name, 0, tmp_path, {}) for arm in made.arms]
        assert budgets.remark(
            results.Results(tmp_path, runs, made.as_json()), "attn=mqa"
        ).startswith(said)
