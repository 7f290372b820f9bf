"""Runs in W&B's own files: swept ones have names of their own and one group, and curves go over
the optimiser's steps.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.wandb_files import wandb_records
from zoo import train
from zoo.tracking import wandb_logger

LONG = f"data.path={'x' * 200}"


def records(file: Path, field: str) -> list[Any]:
    return [getattr(record, field) for record in wandb_records(file) if record.HasField(field)]


def test_a_sweeps_runs_are_told_apart_and_their_curves_go_over_steps(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path.joinpath(*"a" * 60)
    deep.mkdir(parents=True)
    path = next(word for word in words if word.startswith("data.path=")).partition("=")[2]
    (deep / "text").symlink_to(path)
    line = [
        "-m",
        *words,
        f"data.path={deep / 'text'}",
        "logger=wandb",
        "trainer.max_steps=4,6",
        "hydra.sweep.dir=mine",
    ]
    monkeypatch.setattr(sys, "argv", ["train", *line])
    train.main()
    files = sorted(
        Path("mine").glob("*/wandb/offline-run-*/*.wandb"), key=lambda file: file.parts[1]
    )
    runs = [records(file, "run")[0] for file in files]
    assert [run.run_group for run in runs] == ["mine", "mine"]
    assert [run.display_name.split(",")[0] for run in runs] == [
        "trainer.max_steps=4",
        "trainer.max_steps=6",
    ]
    for file, last in zip(files, (4, 6), strict=True):
        history = records(file, "history")
        told = [
            {item.key or item.nested_key[0]: item.value_json for item in row.item}
            for row in history
        ]
        steps = [row.step.num for row in history if row.item]
        assert steps == [int(row[wandb_logger.STEP]) for row in told if wandb_logger.STEP in row], (
            "W&B's step is the optimiser's"
        )
        assert steps == sorted(set(steps)), "a row a step"
        assert steps[-1] == last
        assert {int(row["_step"]) for row in told if "_step" in row} <= set(steps)


@pytest.mark.parametrize(
    "varied", ["seed", "norm", "trainer.max_steps", "logger.project", "data.path", "arch.pattern"]
)
def test_runs_that_differ_in_what_varies_differ_in_their_names(varied: str) -> None:
    values = ["1", "2", "y" * 300, "y" * 300 + "z"]
    names = [
        wandb_logger.title([LONG, "ffn=gelu", f"{varied}={value}"], [varied]) for value in values
    ]
    assert len(set(names)) == len(values)
    assert all(len(name) <= 128 for name in names)
    assert all(name.startswith(f"{varied}=") for name in names)


def test_labels_and_long_names_are_told_apart_too() -> None:
    arms = [
        f"{'long arm ' * 20}{arm}/seed_{seed}" for arm, seed in itertools.product("ab", range(3))
    ]
    assert len({wandb_logger.title([], [], arm) for arm in arms}) == 6
    assert wandb_logger.title(["norm=rms", "seed=1"], ["norm"], "mine") == "mine,norm=rms"
    assert wandb_logger.title(["logger=wandb"], []) == "default"


@pytest.mark.parametrize(
    "content",
    ["", "- a", "hydra: 3", "hydra: {overrides: {task: 7}}", "hydra: {overrides: null}", "["],
)
def test_a_file_that_is_no_sweeps_is_passed_over(tmp_path: Path, content: str) -> None:
    (tmp_path / "multirun.yaml").write_text(content, encoding="utf-8")
    assert wandb_logger.sweep(tmp_path / "0") == (None, [])
