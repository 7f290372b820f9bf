"""A package from outside adds components, callbacks, metrics and loggers by one entry point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import zoo
from tests.helpers.runs import summary
from zoo import metrics
from zoo.errors import ZooError
from zoo.registry import register

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "custom_component"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the example package is installed into."""
    place = tmp_path_factory.mktemp("site")
    how = ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(place)]
    install = [sys.executable, "-m", "pip", "install", "-q", *how, str(EXAMPLE)]
    subprocess.run(install, check=True, capture_output=True)
    return place


def test_the_example_package_is_installed_checked_trained_and_read(
    installed: Path, words: list[str], tmp_path: Path
) -> None:
    """In processes of their own, which find the package by its entry point alone."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)])}

    def run(module: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env=found,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "norm=power: 18 of 18 checks hold" in run("zoo.check", "norm=power")
    choices = ["norm=power", "norm.p=2", "callbacks=[{name: gain_watch, show: true}]"]
    run_folder = "hydra.run.dir=runs/first"
    printed = run("zoo.train", *words, *choices, "logger=second_csv", run_folder)
    assert "gain spread" in printed
    told = summary("runs/first")
    assert told["choices"]["norm"] == "power"
    assert told["metrics"]["val/gain_spread"] >= 0
    assert "custom_component" in told["sources"]["packages"]
    assert {"norm=power", "callback=gain_watch"} <= told["sources"]["components"].keys()
    assert list(Path("runs/first/second").rglob("metrics.csv"))


def test_a_run_is_loaded_and_all_runs_are_one_table(train, tmp_path: Path) -> None:
    for seed in range(2):
        train(f"runs/{seed}", f"seed={seed}")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "config.yaml").write_text("norm: rms", encoding="utf-8")
    model, tokenizer = zoo.load("runs/0")
    assert model(tokenizer_ids(tokenizer)).shape == (1, 5, tokenizer.vocab)
    table = zoo.runs("runs")
    assert list(table.index) == ["0", "1", "broken"]
    assert list(table["status"]) == ["finished", "finished", "unreadable"]
    assert table.loc["1", "val/loss"] == summary("runs/1")["metrics"]["val/loss"]
    assert table.loc["1", "norm"] == "layer"
    assert table.loc["1", "seed"] == 1
    with pytest.raises(ZooError, match="there is no run in nowhere"):
        zoo.runs("nowhere")


def tokenizer_ids(tokenizer):
    import torch

    return torch.as_tensor(tokenizer.encode("a b c").astype("int64"))[None]


@pytest.mark.usefixtures("own_registry")
def test_a_metric_from_outside_judges_a_study() -> None:
    with pytest.raises(ZooError, match="metric=val/mine: no run measures it"):
        metrics.of("val/mine")

    @register("metric", "val/mine")
    def mine() -> metrics.Metric:
        """A metric of one's own."""
        return metrics.Metric("val/mine", "points", "higher", diverged=0.0)

    assert not metrics.of("val/mine").lower_is_better


def test_callbacks_are_refused_while_composing() -> None:
    from zoo import config

    with pytest.raises(ZooError, match="unknown callback 'nobody'"):
        config.compose(["callbacks=[nobody]"])
    with pytest.raises(ZooError, match=r"callbacks must be a list, as in callbacks=\[mine\]"):
        config.compose(["callbacks=nobody"])
