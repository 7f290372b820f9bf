"""How it is learned: optimisers (wiring: parameter groups) and learning-rate schedules (wiring: the number of steps).

A schedule is a function of the optimiser step, from 0, that gives the factor of the learning rate; warm-up starts above zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from zoo.registry import ZooError, register

Schedule = Callable[[int], float]


@register("optim", "adamw")
def adamw(groups: list[dict[str, Any]], *, lr: float = 2e-3, weight_decay: float = 0.1, beta1: float = 0.9,
          beta2: float = 0.95, eps: float = 1e-8) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019), torch's fused kernel; weight decay on matrices only."""
    if weight_decay < 0 or not 0 <= lr < math.inf:
        raise ZooError(f"optim.lr={lr} and optim.weight_decay={weight_decay} must be 0 or more")
    for group in groups:
        group["weight_decay"] = weight_decay if group["decays"] else 0.0
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=True)
    # the kernel could undo a loss scale by itself, but clipping comes before it and needs the true gradients
    optimizer._step_supports_amp_scaling = False
    return optimizer


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups, each parameter in one: matrices and embeddings, which may decay; gains and biases, which do not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    split = {decays: [p for p in parameters if (p.ndim >= 2) is decays] for decays in (True, False)}
    return [{"params": members, "decays": decays} for decays, members in split.items() if members]


@register("schedule", "cosine")
def cosine(steps: int, *, warmup: int = 40, final: float = 0.1) -> Schedule:
    """Linear warm-up over `warmup` steps, then half a cosine down to `final` times the rate (Loshchilov & Hutter 2017)."""
    if not 0 <= final <= 1:
        raise ZooError(f"schedule.final must be from 0 to 1, not {final}")
    warm = constant(steps, warmup=warmup)

    def factor(step: int) -> float:
        progress = min(max(step - warmup, 0) / max(steps - warmup, 1), 1.0)
        return warm(step) * (final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2)

    return factor


@register("schedule", "constant")
def constant(steps: int, *, warmup: int = 40) -> Schedule:
    """Linear warm-up over `warmup` steps, then constant."""
    if warmup < 0:
        raise ZooError(f"schedule.warmup must be 0 or more steps, not {warmup}")
    return lambda step: min((step + 1) / (warmup + 1), 1.0)
