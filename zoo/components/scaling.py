"""RoPE beyond the length trained on: how its frequencies change. Chosen by pos.scaling.

Wiring: the width that is turned, the base. Called with frequencies (width/2) in radians a token,
fastest first, it gives those to turn by; `gain` multiplies the turned queries and keys.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from zoo.errors import ZooError
from zoo.registry import register


class Scaling:
    """What every scaling knows; `factor` says how many times longer the sequences become."""

    gain = 1.0

    def __init__(self, width: int, base: float, factor: float) -> None:
        self.width, self.base, self.factor = width, base, factor

    def __call__(self, frequencies: Tensor) -> Tensor:
        raise NotImplementedError


@register("scaling", "linear")
class Linear(Scaling):
    """Positions interpolated (Chen 2023): every frequency divided by the factor."""

    def __init__(self, width: int, base: float, *, factor: Annotated[float, Ge(1)] = 4.0) -> None:
        super().__init__(width, base, factor)

    def __call__(self, frequencies: Tensor) -> Tensor:
        return frequencies / self.factor


@register("scaling", "ntk")
class NTK(Scaling):
    """A larger base (NTK-aware, bloc97 2023): the slowest frequency is divided by the factor, the
    fastest stays.
    """

    def __init__(self, width: int, base: float, *, factor: Annotated[float, Ge(1)] = 4.0) -> None:
        super().__init__(width, base, factor)

    def __call__(self, frequencies: Tensor) -> Tensor:
        if self.width == 2:
            return frequencies
        share = (
            torch.arange(len(frequencies), device=frequencies.device, dtype=frequencies.dtype)
            * 2
            / (self.width - 2)
        )
        return frequencies * self.factor**-share


@register("scaling", "llama3")
class Llama3(Scaling):
    """Slow frequencies divided by the factor, fast ones kept, those between mixed (Llama 3.1 2024).

    A wave counts as fast that fits `high` times or more into the `original` length, as slow that
    fits at most `low` times.
    """

    def __init__(
        self,
        width: int,
        base: float,
        *,
        factor: Annotated[float, Ge(1)] = 8.0,
        low: Annotated[float, Gt(0)] = 1.0,
        high: Annotated[float, Gt(0)] = 4.0,
        original: Annotated[int, Ge(1)] = 8192,
    ) -> None:
        super().__init__(width, base, factor)
        if low >= high:
            raise ZooError(f"pos.scaling needs low < high, not low={low} and high={high}")
        self.low, self.high, self.original = low, high, original

    def __call__(self, frequencies: Tensor) -> Tensor:
        turns = self.original * frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@register("scaling", "yarn")
class YaRN(Scaling):
    """Slow frequencies divided by the factor, fast ones kept, a ramp over their index between
    (YaRN, Peng 2023).

    A wave counts as fast that fits `fast` times into the `original` length, as slow that fits
    `slow` times. Turned queries and keys are multiplied by `gain`, .1·ln(factor) + 1 unless given.
    """

    def __init__(
        self,
        width: int,
        base: float,
        *,
        factor: Annotated[float, Ge(1)] = 4.0,
        fast: Annotated[float, Gt(0)] = 32.0,
        slow: Annotated[float, Gt(0)] = 1.0,
        original: Annotated[int, Ge(1)] = 4096,
        gain: float | None = None,
    ) -> None:
        super().__init__(width, base, factor)
        if slow >= fast:
            raise ZooError(f"pos.scaling needs slow < fast, not slow={slow} and fast={fast}")
        self.gain = 0.1 * math.log(factor) + 1 if gain is None else gain
        first, last = (
            width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (fast, slow)
        )
        self.first, self.last = max(math.floor(first), 0), min(math.ceil(last), width - 1)

    def __call__(self, frequencies: Tensor) -> Tensor:
        index = torch.arange(len(frequencies), device=frequencies.device, dtype=frequencies.dtype)
        slow = ((index - self.first) / max(self.last - self.first, 1e-3)).clamp(0, 1)
        return frequencies / self.factor * slow + frequencies * (1 - slow)
