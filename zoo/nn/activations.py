"""Activation functions by name, and the soft cap of scores and logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

Activation = Callable[[Tensor], Tensor]
gelu_tanh = partial(F.gelu, approximate="tanh")


def relu2(x: Tensor) -> Tensor:
    """relu(x)² (Primer, So 2021)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
    "relu2": relu2,
}


def capped(x: Tensor, cap: float | None) -> Tensor:
    """cap·tanh(x/cap), which never leaves ±cap (Gemma 2 2024)."""
    return x if cap is None else cap * torch.tanh(x / cap)
