"""How the learning rate moves. Wiring: the number of steps.

A schedule is a function of the optimiser step, from 0, that gives the factor of the learning rate;
warm-up starts above zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

from annotated_types import Ge, Le

from zoo.registry import register

Schedule = Callable[[int], float]


@register("schedule", "cosine")
def cosine(
    steps: int, *, warmup: Annotated[int, Ge(0)] = 40, final: Annotated[float, Ge(0), Le(1)] = 0.1
) -> Schedule:
    """Linear warm-up over `warmup` steps, then half a cosine down to `final` times the rate
    (Loshchilov & Hutter 2017).
    """
    return _falling(
        steps, warmup, warmup, final, lambda progress: (1 + math.cos(math.pi * progress)) / 2
    )


@register("schedule", "linear")
def linear(
    steps: int, *, warmup: Annotated[int, Ge(0)] = 40, final: Annotated[float, Ge(0), Le(1)] = 0.0
) -> Schedule:
    """Linear warm-up over `warmup` steps, then a straight line down to `final` times the rate
    (BERT, Devlin 2018).
    """
    return _falling(steps, warmup, warmup, final, lambda progress: 1 - progress)


@register("schedule", "wsd")
def wsd(
    steps: int,
    *,
    warmup: Annotated[int, Ge(0)] = 40,
    decay: Annotated[float, Ge(0), Le(1)] = 0.2,
    final: Annotated[float, Ge(0), Le(1)] = 0.0,
    shape: Literal["sqrt", "linear"] = "sqrt",
) -> Schedule:
    """Warm-up, stable, decay (MiniCPM, Hu 2024): over the last `decay` of the steps down to `final`
    times the rate.

    Down by 1 - √progress (Hägele 2024), or by a straight line. All before it is the same for any
    number of steps.
    """
    falls = {
        "sqrt": lambda progress: 1 - math.sqrt(progress),
        "linear": lambda progress: 1 - progress,
    }
    return _falling(steps, warmup, max(warmup, steps - round(decay * steps)), final, falls[shape])


@register("schedule", "inverse_sqrt")
def inverse_sqrt(steps: int, *, warmup: Annotated[int, Ge(0)] = 40) -> Schedule:
    """Linear warm-up over `warmup` steps, then as 1/√step (Vaswani 2017)."""
    warm = constant(steps, warmup=warmup)
    return lambda step: warm(step) if step <= warmup else math.sqrt((warmup + 1) / (step + 1))


@register("schedule", "constant")
def constant(steps: int, *, warmup: Annotated[int, Ge(0)] = 40) -> Schedule:
    """Linear warm-up over `warmup` steps, then constant."""
    return lambda step: min((step + 1) / (warmup + 1), 1.0)


def _falling(
    steps: int, warmup: int, start: int, final: float, shape: Callable[[float], float]
) -> Schedule:
    """Warm-up, then constant up to step `start`, then from 1 to `final` at `steps` by a shape of
    the progress from 0 to 1.
    """
    warm = constant(steps, warmup=warmup)

    def factor(step: int) -> float:
        progress = min(max(step - start, 0) / max(steps - start, 1), 1.0)
        return warm(step) * (final + (1 - final) * shape(progress))

    return factor
