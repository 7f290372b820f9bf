"""An answer that needs no model comes at once: under two seconds of CPU time, with neither torch
nor wandb imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CPU_SECONDS = 2.0  # a promise to the person who waits
HEAVY = ("torch", "wandb", "lightning", "datasets", "transformers")
RUN = """
import runpy, sys
sys.argv = [{module!r}, *{words!r}]
try:
    runpy.run_module({module!r}, run_name="__main__")
except SystemExit as ending:
    print(ending.code if ending.code else "", file=sys.stderr)
print("heavy:", [name for name in {heavy!r} if name in sys.modules])
"""
COMPOSE = """
from zoo import config
print(config.compose({words!r})["norm"])
"""


def run(source: str, folder: Path) -> tuple[str, float]:
    """What a Python process says, and its CPU seconds."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False, cwd=folder
    )
    after = os.times()
    spent = sum(after[2:4]) - sum(before[2:4])  # of children: user, system
    return done.stdout + done.stderr, spent


@pytest.mark.parametrize(
    ("module", "words", "shown"),
    [
        ("zoo.train", ["norm=rsm"], "did you mean 'rms'"),
        ("zoo.train", ["norm.epss=1"], "did you mean 'eps'"),
        ("zoo.train", ["-m", "norm=layer,rsm"], "did you mean 'rms'"),
        ("zoo.train", ["--help"], "norm: "),
        ("zoo.train", ["--cfg", "job"], "eps: "),
        ("zoo.components", [], "norm=rms"),
        ("zoo.components", ["--json"], '"rms"'),
        ("zoo.components", ["nrom"], "did you mean 'norm'"),
        ("zoo.generate", ["promt=x"], "did you mean 'prompt'"),
        ("ablations.run", ["--help"], "plan_only=true"),
        ("ablations.run", ["-sc", "install=bash"], "complete -o nospace"),
    ],
    ids=lambda value: value if isinstance(value, str) else "_".join(value),
)
def test_an_answer_comes_at_once(module: str, words: list[str], shown: str, tmp_path: Path) -> None:
    said, spent = run(RUN.format(module=module, words=words, heavy=HEAVY), tmp_path)
    assert shown in said
    assert "heavy: []" in said, said
    assert "Traceback" not in said
    assert spent < CPU_SECONDS
    assert list(tmp_path.iterdir()) == [], "asking leaves nothing behind"


def test_composing_is_quick(tmp_path: Path) -> None:
    said, spent = run(COMPOSE.format(words=["model=gpt2", "norm=rms"]), tmp_path)
    assert "'rms'" in said
    assert spent < CPU_SECONDS
