"""How memory grows with the length: with its square where the scores are kept, else with the
length itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from zoo import inspect as command
from zoo import registry
from zoo.cost import complexity as inspect
from zoo.errors import ZooError

SMALL = ["arch.dim=16", "arch.heads=2"]


def told(monkeypatch: pytest.MonkeyPatch, capsys: Any, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["inspect", "complexity", *SMALL, *words])
    command.main()
    return str(capsys.readouterr().out)


def growth(name: str, lengths: list[int], backward: bool, *words: str) -> float:
    made = inspect.passes([*SMALL, *words])[name]
    return inspect.exponent(lengths, [inspect.peak(made(length, backward)) for length in lengths])


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("words", [["attn=mha"], ["attn=gqa", "pos=rope", "arch=encoder"]])
def test_kept_scores_are_quadratic(backward: bool, words: list[str]) -> None:
    name = words[0].removeprefix("attn=")
    assert growth(f"{name}, eager", [512, 1024], backward, *words) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("words", [["attn=mha"], ["attn=gqa", "pos=rope", "arch=encoder"]])
def test_the_fused_path_is_linear(backward: bool, words: list[str]) -> None:
    """Beside a constant, which is the blocks of scores that its kernel works on."""
    name = words[0].removeprefix("attn=")
    assert growth(f"{name}, sdpa", [1024, 2048], backward, *words, "arch.dim=128") == pytest.approx(
        1, abs=0.2
    )


def test_what_undoes_the_fused_path_is_seen() -> None:
    """A bias on each score is as large as the scores."""
    assert growth("mha, sdpa", [512, 1024], False, "pos=alibi") == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("backward", [False, True])
def test_recurrence_is_linear(backward: bool) -> None:
    recurrent = [name for name in inspect.passes(SMALL) if "," not in name]
    assert set(recurrent) == {
        name for name in registry.entries("attn") if "backend" not in registry.resolve("attn", name)
    }
    for name in recurrent:
        assert growth(name, [512, 1024], backward) == pytest.approx(1, abs=0.1), name


def test_memory_is_counted_to_the_byte() -> None:
    """The scores and the weights made of them are there at once, 4 bytes each; a second pass
    holds the same.
    """
    made = inspect.passes(SMALL)["mha, eager"]
    assert (
        inspect.peak(made(64, True))
        == inspect.peak(made(64, True))
        > inspect.peak(made(64, False))
        > 4 * 2 * 64 * 64
    )


def test_an_exponent_is_the_slope_over_the_longer_half() -> None:
    assert inspect.exponent(
        [1, 2, 4, 8, 16], [9, 9, *(3 * n**1.5 for n in (4, 8, 16))]
    ) == pytest.approx(1.5)
    assert inspect.exponent([2, 4], [5, 5]) == pytest.approx(0)


def test_the_command_prints_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out.svg"
    shown = told(monkeypatch, capsys, "attn=gqa", "--lengths", "16", "8", "--out", str(out))
    assert all(
        word in shown
        for word in ("exponent", "gqa, eager", "gqa, sdpa", "lstm", "rnn", "memory, training")
    )
    assert out.read_text(encoding="utf-8").count("sequence length") == 4


def test_programs_are_told_the_same(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    found = json.loads(told(monkeypatch, capsys, "attn=lstm", "--lengths", "4", "8", "--json"))
    assert found["lengths"] == [4, 8]
    assert list(found["mixers"]) == ["lstm"], "what is chosen, where it has no backend to compare"
    assert found["mixers"]["lstm"].keys() == inspect.FIGURES.keys()
    assert all(len(curve["values"]) == 2 for curve in found["mixers"]["lstm"].values())


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["norm=rms"], "changes no mixer"),
        (["arch.length=64"], "--lengths"),
        (["attn=gpa"], "did you mean 'gqa'"),
        (["arch.heads=3"], "not a multiple"),
        (["attn=lstm", "pos=rope"], "choose pos=none"),
        (["attn.softcap=5"], "eager or flex"),
        (["--lengths", "8"], "two different"),
        (["--lengths", "8", "8"], "two different"),
        (["--lengths", "0", "8"], "at least 1"),
        (["attn.backend=flex", "--lengths", "8", "16"], "no gradient on this device"),
        (["--out", "it.doc"], "name a picture"),
    ],
)
def test_what_is_wrong_is_said(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with pytest.raises((ZooError, SystemExit), match=sentence):
        told(monkeypatch, capsys, *words)


def test_without_matplotlib_a_picture_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        SystemExit, match=r"needs matplotlib, .*: pip install 'transformer-zoo\[report\]'"
    ):
        told(monkeypatch, capsys, "--out", "it.svg")
