"""Forecast a study: the time of its runs, and the validation data they are judged on."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import torch

from ablations.plan.jobs import Plan
from zoo import cost, models, registry
from zoo.config import Config
from zoo.tracking import status
from zoo.utils import files

LARGEST_READ = 100 << 20  # bytes of text that are read to count its documents
LARGEST_TIMED = 50_000_000  # parameters of a model whose step is timed


class Validation(NamedTuple):
    documents: int
    bytes: int


def time_left(plan: Plan) -> tuple[int, float | None, str]:
    """How many runs are left, their seconds (None where unknown), and where that is known from.

    The pace is that of the runs that have finished; before the first, that of one timed step,
    with a second for the start and the end of each run.
    """
    works = {
        arm.name: _work(config, cost)
        for arm, config, cost in zip(plan.arms, plan.configs, plan.costs, strict=True)
    }
    left, done, seconds = [], [], []
    for job in [*plan.trials(), *plan.jobs()]:
        summary = files.read_json(plan.folder / job.folder / "summary.json")
        taken = summary.get("wall_seconds", summary.get("seconds"))
        if summary.get("status") not in status.SETTLED:
            left.append(works[job.arm])
        elif summary.get("status") == status.FINISHED and taken:
            done.append(works[job.arm])
            seconds.append(taken)
    if done:
        return len(left), sum(left) * sum(seconds) / sum(done), f"{len(done)} finished runs"
    if not left or plan.costs[0]["parameters"] > LARGEST_TIMED:
        return len(left), None, "no run has finished"
    return len(left), sum(left) / _flops_per_second(plan) + len(left), "one timed baseline step"


def duration(seconds: float) -> str:
    """Seconds in the unit a person would choose."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} hours"


def _work(config: Config, cost_of_arm: Mapping[str, int]) -> float:
    """The FLOPs of a run with its evaluations; a byte of text counts as a token."""
    evaluations = math.ceil(config["trainer"]["max_steps"] / config["trainer"]["eval_every"])
    split = validation(config["data"])
    tokens = split.bytes if split else 0
    forward = cost_of_arm["flops_per_token"] / cost.BACKWARD_AND_FORWARD
    return cost_of_arm["training_flops"] + evaluations * tokens * forward


def _flops_per_second(plan: Plan) -> float:
    """The FLOP/s that a step of the baseline reaches here: the fastest of five."""
    config = plan.configs[0]
    on_gpu = torch.cuda.is_available() and config["trainer"]["accelerator"] != "cpu"
    device = "cuda" if on_gpu else "cpu"
    model = models.build(config, device=device)
    shape = (min(config["loader"]["batch_size"], 16), config["loader"]["length"])
    inputs = cost.inputs(model, torch.zeros(shape, dtype=torch.long, device=device))
    threads = torch.get_num_threads()
    torch.set_num_threads(config["trainer"]["threads"] or threads)
    fastest = math.inf
    for _ in range(5):
        begun = time.perf_counter()
        model(**inputs).float().logsumexp(-1).sum().backward()
        if on_gpu:
            torch.cuda.synchronize()
        fastest = min(fastest, time.perf_counter() - begun)
    torch.set_num_threads(threads)
    return plan.costs[0]["flops_per_token"] * shape[0] * shape[1] / fastest


_known: dict[str, Validation | None] = {}


def validation(data: Config) -> Validation | None:
    """The size of the validation split; None where the text is too large to be read for that."""
    key = f"{data} {LARGEST_READ}"
    if key not in _known:
        _known[key] = _count_validation(data)
    return _known[key]


def _count_validation(data: Config) -> Validation | None:
    source = registry.build("data", data)
    if sum(path.stat().st_size for _, path in source.files(Counter())) > LARGEST_READ:
        return None
    splits = source.splits()
    return Validation(sum(1 for _ in splits.documents["val"]), splits.bytes["val"])
