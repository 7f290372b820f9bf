"""A toy of every named model trains, with its own objective, on text."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.helpers.runs import Train, losses
from zoo import config


@pytest.mark.parametrize("name", config.menu()["model"])
def test_a_toy_of_it_learns(train: Train, name: str) -> None:
    told = train(
        "run",
        f"model={name}",
        "size=tiny",
        "arch.layers=4",
        "trainer.max_steps=24",
        "trainer.eval_every=24",
        "arch.dropout=0.0",
        "trainer.checkpoint_every=100",
        "trainer.sample=false",
        "optim.lr=5e-3",
    )
    assert told["status"] == "finished"
    learned = [float(loss) for _, loss, _ in losses("run") if loss]
    assert learned[-1] < learned[0]
    assert told["metrics"]["val/loss"] < math.log(
        config.compose([f"model={name}", "size=tiny"])["arch"]["vocab"]
    )
    assert (Path("run") / "checkpoints" / "last.ckpt").exists()
