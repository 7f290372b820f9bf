"""A checkpoint, a run and a study that version 0.1.0 made are read, resumed and reported with its
own results.

`tests/fixtures/made_before_the_move/make.txt` made them; expected.json is what that version then
reached. The same processor and torch must give the same bits, others the same to 1e-5: they round
otherwise, and four steps let that grow.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ablations import report
from ablations import study as studies
from tests.helpers.runs import summary
from zoo import config as configuration
from zoo.checkpoints import weights
from zoo.generation import prompting
from zoo.launch.run_spec import RunSpec
from zoo.training import callbacks, runner

FIXTURE = Path(__file__).parents[1] / "fixtures" / "made_before_the_move"
WORDING = {"note", "budget"}  # columns of comparison.csv that are sentences


def machine() -> list[str]:
    """What decides how sums are rounded: the release of torch, its kernels and the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return [torch.__version__, torch.backends.cpu.get_cpu_capability(), *names[:1]]


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, Any]:
    """What the earlier version reached; its folders lie in the folder of the test."""
    shutil.copytree(FIXTURE, tmp_path, dirs_exist_ok=True)
    return json.loads(Path("expected.json").read_text(encoding="utf-8"))


def assert_equal(found: Any, before: Any, expected: dict[str, Any]) -> None:
    exact = expected["machine"] == machine()
    assert found == (before if exact else pytest.approx(before, rel=1e-5, abs=1e-6))


def numbers(row: dict[str, str]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if value and name != "train/tokens_per_second"
    }


def test_checkpoint_gives_its_logits_and_its_text(expected: dict[str, Any]) -> None:
    model, tokenizer, config = weights.load_model("run")
    with torch.inference_mode():
        logits = model(torch.tensor(expected["tokens"]))[:, -1].flatten().tolist()
    assert_equal(logits, [value for row in expected["logits"] for value in row], expected)
    if expected["machine"] == machine():  # else a draw on the edge falls to the other side
        used = prompting.prompter(config, model, tokenizer)
        assert used.answer("3 times ", tokens=20, seed=1) == expected["answer"]


def test_run_is_resumed_to_the_same_end(
    expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    restored: dict[str, float] = {}
    before = callbacks.BestCheckpoint.load_state_dict

    def load(self: callbacks.BestCheckpoint, state: dict[str, Any]) -> None:
        before(self, state)
        assert self.best_model_score is not None
        restored["best"] = float(self.best_model_score)

    monkeypatch.setattr(callbacks.BestCheckpoint, "load_state_dict", load)
    stored = torch.load("run/checkpoints/last.ckpt", weights_only=True)["callbacks"]
    overrides = summary("run")["overrides"]
    result = runner.run(RunSpec(configuration.compose(overrides), overrides), Path("run"))
    assert restored["best"] == expected["best_model_score"], "state of best.ckpt's callback"
    with Path("run/metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = [numbers(row) for row in csv.DictReader(file)]
    assert len(rows) == 4
    for row, then in zip(rows, expected["rows"], strict=True):
        assert_equal(row, numbers(then), expected)
    metrics = {name: result["metrics"][name] for name in expected["metrics"]}
    assert_equal(metrics, expected["metrics"], expected)
    last = torch.load("run/checkpoints/last.ckpt", weights_only=True)
    sums = {name: value.double().sum().item() for name, value in last["state_dict"].items()}
    assert_equal(sums, expected["weight_sums"], expected)
    assert sorted(last["callbacks"]) == sorted(stored) == expected["callbacks"]
    told = expected["summary"]
    if expected["machine"] != machine():
        told.pop("sample")
    assert {key: result[key] for key in told} == told


def test_study_of_an_earlier_version_has_the_same_hash_and_nothing_left_to_run(
    expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ablations import run

    before = json.loads(Path("study/study.json").read_text(encoding="utf-8"))
    assert studies.load("norms.yaml").hash == before["hash"]
    runs = {path: path.read_bytes() for path in Path("study").glob("*/*/summary.json")}
    assert len(runs) == 9
    monkeypatch.setattr(report, "show", lambda folder: None)
    monkeypatch.setattr(sys, "argv", ["ablations.run", "study=norms.yaml", "hydra.sweep.dir=study"])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 0
    assert {path: path.read_bytes() for path in Path("study").glob("*/*/summary.json")} == runs
    after = json.loads(Path("study/study.json").read_text(encoding="utf-8"))
    assert after["hash"] == before["hash"]
    assert after["looks"] == before["looks"]
    assert after["arms"] == before["arms"]


def test_study_of_an_earlier_version_is_reported_with_the_same_numbers(
    expected: dict[str, Any],
) -> None:
    def table() -> list[dict[str, str]]:
        with Path("study/comparison.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [{key: value for key, value in row.items() if key not in WORDING} for row in rows]

    before = table()
    Path("study/comparison.csv").unlink()
    report.show(Path("study"))
    assert table() == before
    assert [row["verdict"] for row in before] == ["baseline", "exploratory", "exploratory"]
    assert before[2]["diverged"] == "3"
