"""Folders of studies with planted outcomes."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import yaml

from ablations import results
from ablations.results import Results, judging
from ablations.stats import Comparison
from zoo import metrics

UNIGRAM = 3.2
SEEDS = 6


def run(
    folder: Path, arm: str, seed: int, value: float | None, status: str = "finished", **more: Any
) -> None:
    folder.mkdir(parents=True)
    summary = {
        "status": status,
        "seed": seed,
        "overrides": [f"norm={arm}", f"seed={seed}", "hydra.x=1", "resume=auto"],
        "error": None,
        "metrics": {"val/loss": value, "val/bits_per_byte": 2.0},
        "parameters": 1000,
        "flops_per_token": 6000,
        "tokens": 50,
        "seconds": 3.0,
        "data": {"fingerprint": "f" * 64, "unigram_nats": UNIGRAM, "documents": 7},
        "versions": {"torch": "2"},
        "over": None,
        "git_sha": "a" * 40,
        "tokens_per_second": 10.0,
    } | more
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    config = {"tokenizer": {"name": "byte"}, "objective": {"name": "clm"}, "loader": {"length": 4}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "metrics.csv").write_text(
        f"step,train/loss,val/loss\n1,3.0,\n2,,{value or ''}\n", encoding="utf-8"
    )
    np.savez(folder / "evaluation.npz", position_nats=np.ones(8), position_tokens=np.ones(8))


def study(
    folder: Path,
    effects: dict[str, float],
    seeds: int = SEEDS,
    noise: float = 0.01,
    levels: dict[str, dict[str, str]] | None = None,
    **more: Any,
) -> Path:
    """A study whose arms differ from `base` by these effects, with noise between seeds."""
    draw = random.Random(0)
    for arm, effect in {"base": 0.0, **effects}.items():
        for seed in range(seeds):
            run(folder / arm / f"seed_{seed}", arm, seed, 2.0 + effect + draw.gauss(0, noise))
    content = {
        "hash": "h" * 64,
        "baseline": "base",
        "arms": [
            {"name": arm, "levels": (levels or {}).get(arm, {})} for arm in ("base", *effects)
        ],
        "study": {
            "name": "planted",
            "question": "What is <b>each</b> worth?",
            "seeds": list(range(seeds)),
            "metric": "val/loss",
            "margin": 0.05,
        }
        | more,
        "looks": [{"hash": "h" * 64}],
    }
    (folder / "study.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def verdicts(folder: Path) -> dict[str, str]:
    compared, _ = judging.judged(results.load(folder))
    assert compared is not None
    return {effect.arm: effect.verdict for effect in compared.effects}


def planned(
    folder: Path, summaries: Mapping[str, Mapping[str, Any]], metric: str = "val/loss"
) -> Any:
    """A plan of one arm with three points, of two seeds each, and its folder with these trials."""
    grid = {"optim.lr": [1, 2, 3]}
    jobs = [
        SimpleNamespace(arm="a", trial=trial, seed=seed, folder=f"a/tune/{trial}/seed_{seed}")
        for trial in range(3)
        for seed in (7, 8)
    ]
    for job in jobs:
        (folder / job.folder).mkdir(parents=True)
        content = {"status": "finished", "unigram_nats": UNIGRAM} | dict(
            summaries[f"{job.trial}/{job.seed}"]
        )
        (folder / job.folder / "summary.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "study.json").write_text('{"hash": "h"}', encoding="utf-8")
    asked = SimpleNamespace(grid=grid, trials=None, seeds=[7, 8])
    return SimpleNamespace(
        folder=folder,
        trials=lambda: jobs,
        arms=[SimpleNamespace(name="a")],
        study=SimpleNamespace(tune=asked, measure=metrics.of(metric), metric=metric),
    )


def judged(folder: Path) -> tuple[Results, Comparison]:
    found = results.load(folder)
    compared, refused = judging.judged(found)
    assert compared is not None, refused
    return found, compared


TINY = ["arch.dim=48", "arch.layers=2", "arch.heads=4", "arch.length=32", "tokenizer=byte"]
