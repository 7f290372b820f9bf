"""Ends a run whose loss, metrics, weights or optimiser state are no longer finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from zoo.checkpoints import weights
from zoo.config.suggestions import ways
from zoo.errors import ZooError
from zoo.training import fsdp


class Diverged(ZooError):
    """A number of a run is no longer finite; all ranks raise it at the same step.

    `found` has the `step`, `what` is not finite (a metric, a weight), and its `value` if known.
    """

    agreed = True

    def __init__(
        self, config: Mapping[str, Any], step: int, what: str, value: float | None = None
    ) -> None:
        clip = ["trainer.clip=1"] if config["trainer"]["clip"] is None else []
        tried = ways(config, "a lower optim.lr", "a longer schedule.warmup", "residual=pre", *clip)
        became = "was no longer a finite number" if value is None else f"became {value}"
        super().__init__(f"{what} {became} at step {step}: try {tried}")
        self.found = {"step": step, "what": what, "value": None if value is None else str(value)}


def refuse_metrics(module: Any, metrics: Mapping[str, float], step: int) -> None:
    """Raises Diverged for the first metric that is not finite; all ranks must pass the same."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise Diverged(module.config, step, name, value)


def refuse_weights(module: Any, checkpoint: Mapping[str, Any]) -> None:
    """Raises Diverged on all ranks where one has a checkpoint with a number that is not finite."""
    strategy = module.trainer.strategy
    tensors = [
        (name, fsdp.local(tensor), bound)
        for name, tensor, bound in weights.learned(checkpoint, module.model)
    ]
    names = [name for name, *_ in tensors]
    bad = weights.not_finite(tensors)
    first = len(names) if bad is None else names.index(bad)
    first = int(strategy.reduce(torch.tensor(first, device=module.device), reduce_op="min"))
    if first < len(names):
        raise Diverged(module.config, checkpoint["global_step"], names[first])
