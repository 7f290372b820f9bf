"""Normalisation of the last dimension. Wiring: dim. Shapes: (..., dim) -> (..., dim)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.registry import ZooError, register


def _checked(eps: float) -> float:
    if eps < 0:
        raise ZooError(f"norm.eps must be 0 or more, not {eps}")
    return eps


@register("norm", "layer")
class LayerNorm(nn.LayerNorm):
    """Layer norm (Ba 2016): (x - mean) / sqrt(var + eps) * gain + bias."""

    def __init__(self, dim: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(dim, eps=_checked(eps), bias=bias)


@register("norm", "rms")
class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang & Sennrich 2019): x / sqrt(mean(x²) + eps) * gain; no centring."""

    def __init__(self, dim: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = _checked(eps)
        self.weight = nn.Parameter(torch.ones(dim))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@register("norm", "none")
class NoNorm(nn.Module):
    """No normalisation, to show what it is worth: x."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x
