"""Normalises the last dimension. Wiring: dim. Shapes: (..., dim) -> (..., dim)."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.nn import cpu_kernels
from zoo.registry import register


@register("norm", "layer")
class LayerNorm(nn.LayerNorm):
    """Layer norm (Ba 2016): (x - mean) / sqrt(var + eps) * gain + bias."""

    def __init__(self, dim: int, *, eps: Annotated[float, Ge(0)] = 1e-5, bias: bool = True) -> None:
        super().__init__(dim, eps=eps, bias=bias)


@register("norm", "rms")
class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang & Sennrich 2019): x / sqrt(mean(x²) + eps) * gain; no centring.

    With `zero_centered` the gain is 1 + weight, so that weight decay draws it to 1 (Gemma 2024).
    """

    def __init__(
        self, dim: int, *, eps: Annotated[float, Ge(0)] = 1e-6, zero_centered: bool = False
    ) -> None:
        super().__init__()
        self.eps, self.offset = eps, 1.0 if zero_centered else 0.0
        self.weight = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 1 - self.offset)

    def forward(self, x: Tensor) -> Tensor:
        gain = self.weight + self.offset if self.offset else self.weight
        # torch's kernels take one dtype, and warn where they are given two
        dtype = torch.promote_types(x.dtype, gain.dtype)
        wide, gain = x.to(dtype), gain.to(dtype)
        if x.numel() >= cpu_kernels.SMALLEST_NORM and cpu_kernels.on_cpu(x):
            return cpu_kernels.FusedRMSNorm.apply(wide, gain, self.eps).to(x.dtype)
        return F.rms_norm(wide, self.weight.shape, gain, self.eps).to(x.dtype)


@register("norm", "scale")
class ScaleNorm(nn.Module):
    """x / max(|x|, eps) * g with one learned g for all entries, which starts at √dim (Nguyen &
    Salazar 2019).
    """

    def __init__(self, dim: int, *, eps: Annotated[float, Ge(0)] = 1e-5) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.gain = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.gain, self.dim**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1, eps=self.eps) * self.gain


@register("norm", "dyt")
class DynamicTanh(nn.Module):
    """tanh(alpha·x) * gain + bias, with no statistics of x: one learned alpha in their place (Zhu
    2025).
    """

    def __init__(self, dim: int, *, alpha: float = 0.5) -> None:
        super().__init__()
        self.start = alpha
        self.alpha = nn.Parameter(torch.empty(1))
        self.weight, self.bias = nn.Parameter(torch.empty(dim)), nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha, self.start)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.alpha * x) * self.weight + self.bias


@register("norm", "none")
class NoNorm(nn.Module):
    """No normalisation, to show what it is worth: x."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x
