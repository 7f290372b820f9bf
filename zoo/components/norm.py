"""Normalisation of the last dimension. Wiring: dim. Shapes: (..., dim) -> (..., dim)."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.registry import register

MANY = 2**15  # numbers, from which on fewer passes over them are worth a few microseconds


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
        kind = torch.promote_types(
            x.dtype, gain.dtype
        )  # torch's kernels take one dtype, as it warns where it has two
        wide, gain = x.to(kind), gain.to(kind)
        if x.is_cpu and x.numel() >= MANY and not torch.compiler.is_compiling():
            return _FewPasses.apply(wide, gain, self.eps).to(x.dtype)
        return F.rms_norm(wide, self.weight.shape, gain, self.eps).to(x.dtype)


class _FewPasses(torch.autograd.Function):
    """RMSNorm on a CPU, where torch has no kernel for it and its parts go over x many times (benchmarks/README.md).

    The gradient is that of a layer norm whose mean is taken to be 0, but for the centring, which is added back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        scale = (
            torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps)
        ).rsqrt_()
        ctx.save_for_backward(x, gain, scale)
        return (x * scale).mul_(gain)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gain, scale = ctx.saved_tensors
        backward, zeros = torch.ops.aten.native_layer_norm_backward, torch.zeros_like(scale)
        at_x, at_gain, _ = backward(
            gradient, x, gain.shape, zeros, scale, gain, None, (True, True, False)
        )
        return at_x.add_((gradient @ gain)[..., None].mul_(scale).div_(x.shape[-1])), at_gain, None


@register("norm", "scale")
class ScaleNorm(nn.Module):
    """x / max(|x|, eps) * g with one learned g for all entries, which starts at √dim (Nguyen & Salazar 2019)."""

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
    """tanh(alpha·x) * gain + bias, with no statistics of x: one learned alpha in their place (Zhu 2025)."""

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
