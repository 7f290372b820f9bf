"""How activations grow with the width: not at all with muP, and with the usual parametrisation
as theory has it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo import config
from zoo import coordinates as program
from zoo.errors import ZooError
from zoo.optim import coordinates

WORDS = [
    "arch.layers=2",
    "arch.heads=2",
    "arch.length=32",
    "arch.vocab=64",
    "tokenizer=byte",
    "optim.lr=0.01",
]


def growth(*words: str, steps: int = 4) -> dict[str, float]:
    """Exponents over an eightfold width, on tokens drawn from a few."""
    draw = torch.Generator().manual_seed(0)
    drawn = torch.randint(64, (4, 33), generator=draw)
    batch = {"tokens": drawn[:, :-1], "labels": drawn[:, 1:]}
    configs = {width: config.compose([*WORDS, *words, f"arch.dim={width}"]) for width in (32, 256)}
    return coordinates.exponents(
        {width: coordinates.sizes(made, batch, steps) for width, made in configs.items()}
    )


@pytest.mark.parametrize(("optim", "lr"), [("adamw", 0.005), ("lion", 0.002)])
def test_with_mup_nothing_grows(optim: str, lr: float) -> None:
    found = growth(
        "init=mup", "init.dim=32", "init.head_dim=16", f"optim={optim}", f"optim.lr={lr}"
    )
    assert found.keys() == {"embed", "attn", "ffn", "stack", "logits"}
    assert -0.5 < found.pop("logits") < 0.25, "they start at 1/√width, and learn to be of one size"
    assert all(abs(exponent) < 0.25 for exponent in found.values()), found


def test_with_the_usual_one_each_step_adds_as_much_as_there_are_inputs() -> None:
    """Adam moves each weight by the rate, so a product with n of them moves by up to n times it:
    an exponent near 1.
    """
    found = growth("init=fan_in")
    assert min(found["attn"], found["ffn"]) > 0.6, found
    assert found["embed"] == pytest.approx(-0.5, abs=0.2), "1/√dim at the start"


def test_before_any_step_both_are_of_one_size() -> None:
    found = growth("init=fan_in", "norm=rms", steps=0)
    assert abs(found["stack"]) < 0.1
    assert abs(found["ffn"]) < 0.25


def test_an_exponent_is_the_slope_of_the_logarithms() -> None:
    found = coordinates.exponents(
        {width: {"x": [9.0, 3 * width**1.5], "y": [9.0, 2.0]} for width in (8, 16, 64)}
    )
    assert found == pytest.approx({"x": 1.5, "y": 0.0})


def test_the_command_prints_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "text").mkdir()
    for number in range(20):
        (tmp_path / "text" / f"{number}.txt").write_text(
            "a few words of text\n" * 20, encoding="utf-8"
        )
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    words = [
        "init=mup",
        "data=text",
        f"data.path={tmp_path / 'text'}",
        "arch.length=16",
        "loader.batch_size=2",
    ]
    command = [
        "coordinates",
        *words,
        "--widths",
        "32",
        "16",
        "--steps",
        "1",
        "--out",
        str(tmp_path / "out.svg"),
    ]
    monkeypatch.setattr(sys, "argv", command)
    program.main()
    told = capsys.readouterr().out
    assert all(
        word in told
        for word in ("dim 16", "dim 32", "exponent", "embed", "attn", "ffn", "stack", "logits")
    )
    assert (tmp_path / "out.svg").read_text(encoding="utf-8").count("arch.dim") >= 1


def test_a_width_that_would_be_passed_over_is_refused() -> None:
    with pytest.raises(ZooError, match=r"arch.dim=64 is one width, .* --widths"):
        coordinates.measure(["init=mup", "arch.dim=64"], [16, 32], 1)


@pytest.mark.parametrize("widths", [[32], [32, 32]])
def test_one_width_shows_no_growth(widths: list[int]) -> None:
    with pytest.raises(ZooError, match="two different"):
        coordinates.measure([], widths, 1)
