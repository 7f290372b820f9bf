"""CPU kernels with hand-written gradients, where torch has no fused one (benchmarks/README.md has
the measurements).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

SMALLEST_NORM = 2**15  # numbers to normalise, from which on fewer passes over them pay
SMALLEST_SCORES = 2**18  # attention weights, from which on it pays not to keep them


def on_cpu(x: Tensor) -> bool:
    """Whether these kernels serve a tensor: torch.compile fuses better by itself."""
    return x.is_cpu and not torch.compiler.is_compiling()


class FusedRMSNorm(torch.autograd.Function):
    """RMSNorm in few passes over x, where torch's decomposed one makes many.

    Its gradient is that of a layer norm whose mean is taken to be 0, with the centring added back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale = squares.div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, gain, scale)
        return (x * scale).mul_(gain)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gain, scale = ctx.saved_tensors
        mean = torch.zeros_like(scale)
        grad_x, grad_gain, _ = torch.ops.aten.native_layer_norm_backward(
            grad, x, gain.shape, mean, scale, gain, None, (True, True, False)
        )
        centring = (grad @ gain)[..., None].mul_(scale).div_(x.shape[-1])
        return grad_x.add_(centring), grad_gain, None


class LearnedBiasAttention(torch.autograd.Function):
    """Attention with a learned bias, for which torch's CPU kernels keep all weights.

    The forward pass is the flash kernel. The backward pass recomputes the weights one batch row at
    a time, so that they are never in memory for all rows and layers, and stay in the processor's
    cache.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        y = F.scaled_dot_product_attention(q, k, v, bias.detach(), scale=scale)
        ctx.save_for_backward(q, k, v, bias, y)
        ctx.scale = scale
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, y = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        grad_bias = torch.zeros_like(bias)
        for row in range(len(q)):
            bias_row = row if len(bias) > 1 else 0
            row_bias = bias[bias_row].expand(q.shape[1], -1, -1)
            weights = torch.baddbmm(row_bias, q[row], k[row].mT, alpha=ctx.scale).softmax(-1)
            weights.nan_to_num_(0.0)  # a query that sees no key reads nothing
            grad_v[row] = weights.mT @ grad[row]
            grad_scores = grad[row] @ v[row].mT
            grad_scores.sub_((grad[row] * y[row]).sum(-1, keepdim=True)).mul_(weights)
            grad_bias[bias_row] += grad_scores.sum_to_size(bias[bias_row].shape)
            grad_q[row] = (grad_scores @ k[row]).mul_(ctx.scale)
            grad_k[row] = (grad_scores.mT @ q[row]).mul_(ctx.scale)
        return grad_q, grad_k, grad_v, grad_bias, None
