"""A run that is killed with SIGKILL, anywhere, goes on as if it had not been: every value of its
folder is the same.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.killing import trained
from tests.helpers.runs import summary
from zoo import config
from zoo.checkpoints import reading

MODES = {
    "together": (
        "arch.dropout=0.1",
        "trainer.checkpoint_every=4",
    ),  # an evaluation at each checkpoint, and at the last step
    "plain": ("arch.dropout=0.1",),
    "accumulated": ("arch.dropout=0.1", "trainer.accumulate=2", "loader.isolate=true", "pos=rope"),
    "masked": ("model=bert", "size=tiny", "arch.layers=2", "arch.length=32", "loader.workers=1"),
    "streamed": (
        "loader.stream=true",
        "loader.shuffle=7",
        "loader.workers=1",
        "tokenizer=bpe",
        "tokenizer.vocab=300",
    ),
    "experts": (
        "ffn=moe",
        "ffn.bias=true",
        "ffn.experts=4",
        "trainer.eval_every=3",
        "trainer.checkpoint_every=2",
    ),
}


@pytest.fixture
def compose(words: list[str]) -> Callable[..., config.Config]:
    return lambda *more: config.compose(
        [*words, "trainer.sample=false", "trainer.checkpoint_every=3", *more]
    )


def told(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for clocks and the names of folders."""
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        rows = [
            {key: value for key, value in row.items() if "second" not in key}
            for row in csv.DictReader(file)
        ]
    found = {
        "rows": rows,
        "spread": (folder / "evaluation.npz").read_bytes()
        if (folder / "evaluation.npz").exists()
        else b"",
    }
    for name in ("last", "best"):
        saved = reading.read_checkpoint(folder / "checkpoints" / f"{name}.ckpt")
        for part in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "loops"):
            found[f"{name}.{part}"] = plain(saved[part])
    return found | {
        "metrics": {
            key: value for key, value in summary(folder)["metrics"].items() if "second" not in key
        }
    }


def plain(value: Any) -> Any:
    """As values that == compares to the bit."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes() if value.ndim else value.item()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def check(given: config.Config, whole: Path, folder: Path, moments: list[int]) -> None:
    """A run killed at these moments, one after the other, and then left alone, tells what the
    whole one does.
    """
    folder.mkdir()
    for moment in moments:
        if trained(given, folder, moment):
            break  # it was over before
    trained(given, folder)
    expected, found = told(whole), told(folder)
    assert [key for key in expected if expected[key] != found[key]] == [], f"killed at {moments}"


@pytest.mark.parametrize("mode", ["plain", "together"])
def test_a_run_killed_at_random_goes_on_to_the_bit(
    compose: Callable[..., config.Config], tmp_path: Path, mode: str
) -> None:
    given, draw = compose(*MODES[mode]), random.Random(mode)
    (tmp_path / "whole").mkdir()
    seen = trained(given, tmp_path / "whole")
    assert seen > 100
    check(
        given,
        tmp_path / "whole",
        tmp_path / "killed",
        [draw.randrange(1, seen // 2) for _ in range(4)],
    )


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_killed_anywhere_goes_on_to_the_bit(
    compose: Callable[..., config.Config], tmp_path: Path, mode: str
) -> None:
    given, draw = compose(*MODES[mode]), random.Random(mode)
    (tmp_path / "whole").mkdir()
    seen = trained(given, tmp_path / "whole")
    for moment in range(1, seen + 1):
        check(given, tmp_path / "whole", tmp_path / f"once{moment}", [moment])
    for number in range(10):
        check(
            given,
            tmp_path / "whole",
            tmp_path / f"often{number}",
            [draw.randrange(1, seen // 2) for _ in range(4)],
        )
