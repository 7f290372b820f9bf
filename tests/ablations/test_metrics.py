"""Each metric has a unit and a direction, by which a study is judged, tuned, drawn and told; and
by no part of its name.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablations import plan, report, results, scheduler, wandb_sweep
from ablations import study as studies
from ablations.plan import display
from ablations.report import figures, wording
from tests.helpers.studies import planned, study
from zoo import config, metrics
from zoo.errors import ZooError
from zoo.launch.run_spec import RunSpec
from zoo.training import runner

JUDGING = [metric for metric in metrics.METRICS.values() if metric.better is not None]


def named(metric: metrics.Metric) -> str:
    return metric.name


@pytest.fixture
def labels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the pictures are told to write on their axes; they themselves take a second each."""
    written: list[str] = []
    for name in ("curves", "cost", "positions", "forest"):
        monkeypatch.setattr(
            figures, name, lambda found, *_: written.append(figures.axis(found)) or "<svg/>"
        )
    return written


def measured(
    folder: Path, metric: str, effects: dict[str, float] | None = None, **more: Any
) -> Path:
    """A study in which the arm `more` has three tenths more of a metric than the baseline, and
    `less` as much less.
    """
    study(folder, effects or {"more": 0.3, "less": -0.3}, metric=metric, **more)
    for path in folder.glob("*/*/summary.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        content["metrics"] = {"val/loss": 2.0, metric: content["metrics"]["val/loss"]}
        path.write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("metric", JUDGING, ids=named)
def test_a_study_goes_by_the_direction_and_the_unit_of_its_metric(
    metric: metrics.Metric, tmp_path: Path, labels: list[str]
) -> None:
    folder = measured(tmp_path / "s", metric.name)
    found, compared, _ = report.write(folder)
    assert compared is not None
    best, worst = ("less", "more") if metric.better == "lower" else ("more", "less")
    assert (compared[best].verdict, compared[worst].verdict) == ("better", "worse")
    told = (folder / "report.md").read_text(encoding="utf-8")
    assert f"{best} is better than base: a difference of " in told
    assert f" {metric.unit}" in told
    assert f"| difference ({metric.unit}) |" in told
    assert (" %)" in told.split("95 % interval")[0]) is not metric.share, (
        "a share of a share would be misread"
    )
    if "nats" not in metric.unit:
        assert "nats" not in told
    assert labels
    assert set(labels) == {f"{metric.name} ({metric.unit})"}
    assert found.measure is metric


@pytest.mark.parametrize(
    ("metric", "first"), [("val/loss", "arm9"), ("train/tokens_per_second", "arm10")]
)
def test_colours_are_for_the_best_by_the_metric(metric: str, first: str, tmp_path: Path) -> None:
    effects = {f"arm{number}": (-1) ** number * number / 10 for number in range(1, 11)}
    assert (
        list(figures.colours(results.load(measured(tmp_path / "s", metric, effects, seeds=1))))[1]
        == first
    )


@pytest.mark.parametrize("metric", JUDGING, ids=named)
def test_tuning_chooses_what_is_best_by_the_metric(metric: metrics.Metric, tmp_path: Path) -> None:
    summaries = {
        f"{trial}/{seed}": {"metrics": {"val/loss": 1.0, metric.name: value}}
        for trial, value in enumerate([0.5, 0.9, 0.1])
        for seed in (7, 8)
    }
    chosen = scheduler.tuned(planned(tmp_path, summaries, metric.name))
    assert chosen == {"a": {"optim.lr": 3 if metric.better == "lower" else 2}}


@pytest.mark.parametrize(
    "metric", ["val/los", "train/nonsense", "accuracy", "", "train/lr", "val/accuracy "]
)
def test_a_metric_without_a_direction_is_refused_in_the_plan(metric: str) -> None:
    with pytest.raises(ZooError, match=f"metric={metric}: "):
        studies.parse(
            {"name": "own", "factors": {"norm": ["norm=layer", "norm=rms"]}, "metric": metric}
        )


def test_a_sweep_of_wandb_has_the_direction_as_its_goal(tmp_path: Path) -> None:
    for metric, goal in (("train/tokens_per_second", "maximize"), ("val/perplexity", "minimize")):
        content = {
            "name": "own",
            "factors": {"norm": ["norm=layer", "norm=rms"]},
            "metric": metric,
            "common": ["logger=wandb"],
        }
        wandb_sweep.write(plan.make(studies.parse(content)), [], tmp_path / "sweep.yaml")
        told = yaml.safe_load((tmp_path / "sweep.yaml").read_text(encoding="utf-8"))
        assert told["metric"] == {"name": metric, "goal": goal}


def test_power_of_another_metric_needs_its_own_sd() -> None:
    content = {
        "name": "own",
        "factors": {"norm": ["norm=layer", "norm=rms"]},
        "metric": "train/tokens_per_second",
        "margin": 100.0,
    }
    assert display.power_sentence(studies.parse(content), 1) == (
        "Power unknown: set sd, the standard deviation of train/tokens_per_second over seeds,"
        " in tokens per second"
    )
    assert re.fullmatch(
        r"Power to detect a difference as large as the margin \(100\): \d+–\d+ % with 1 comparison,"
        r" assuming a seed SD of 50 and a correlation of 0–0.2 between paired runs",
        display.power_sentence(studies.parse(content | {"sd": 50.0}), 1),
    )


def test_every_metric_that_a_run_has_is_declared(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    summary = runner.run(RunSpec(config.compose([*words, "trainer.max_steps=2"])), tmp_path / "run")
    assert set(summary["metrics"]) == set(metrics.METRICS)
    measure = {
        name: metrics.of(name) for name in summary["metrics"] if metrics.METRICS[name].better
    }
    levels = {name: metric.unigram(summary) for name, metric in measure.items() if metric.unigram}
    nats = summary["unigram_nats"]
    assert levels == {
        "val/loss": nats,
        "val/perplexity": pytest.approx(math.exp(nats)),
        "val/bits_per_byte": pytest.approx(
            nats / summary["metrics"]["val/loss"] * summary["metrics"]["val/bits_per_byte"],
            rel=0.01,
        ),
    }


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (0.5, 0.5),
        (-2.0, -2.0),
        (None, None),
        (math.nan, None),
        (math.inf, None),
        (-math.inf, None),
        (True, None),
        ("1", None),
        ([], None),
        (10**400, None),
        (1e200, None),
    ],
)
def test_a_number_is_finite_or_none(value: Any, number: float | None) -> None:
    assert metrics.number(value) == number


def test_a_large_value_is_shown_without_decimals_and_a_small_one_with_them(tmp_path: Path) -> None:
    assert wording.signed(-12345.678) == "−12,346"
    assert wording.signed(0.12345) == "+0.1235"


@pytest.mark.parametrize("name", sorted(metrics.METRICS))
def test_a_unit_reads_well_after_a_number_and_after_in(name: str) -> None:
    assert not metrics.METRICS[name].unit.startswith("of ")
