"""Muon, which makes the momentum of a matrix orthogonal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from zoo.optim.adamw import AdamW
from zoo.optim.groups import Group, joined, refuse_factors
from zoo.optim.stepping import evaluate_closure, sharded_like, whole, with_momenta
from zoo.registry import register

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # of x, x³ and x⁵ (Jordan 2024)


@register("optim", "muon")
class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal, for the matrices within the blocks (Muon, Jordan 2024); AdamW for
    all else.

    An orthogonal step is scaled by .2·√max(rows, columns), to the size of AdamW's (Liu 2025), so
    that one rate and one decay serve both. Projections that share a matrix are each made orthogonal
    by themselves. torch.optim.Muon does the same in bfloat16 only, for which most CPUs have no fast
    product. Each rank computes the whole step of a sharded matrix.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        lr: Annotated[float, Ge(0)] = 2e-3,
        weight_decay: Annotated[float, Ge(0)] = 0.1,
        momentum: Annotated[float, Ge(0), Lt(1)] = 0.95,
        iterations: Annotated[int, Ge(1)] = 5,
        beta1: Annotated[float, Ge(0), Lt(1)] = 0.9,
        beta2: Annotated[float, Ge(0), Lt(1)] = 0.95,
        eps: Annotated[float, Ge(0)] = 1e-8,
    ) -> None:
        refuse_factors("muon", groups)
        self.momentum, self.iterations = momentum, iterations
        others = [group for group in groups if not group["hidden"]]
        self.adamw = AdamW(
            others, lr=lr, weight_decay=weight_decay, beta1=beta1, beta2=beta2, eps=eps
        )
        hidden = joined(
            [group for group in groups if group["hidden"]], lr, weight_decay, "hidden", "rows"
        )
        super().__init__([*self.adamw.param_groups, *hidden], {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = evaluate_closure(closure)
        self.adamw.state = self.state  # loading replaces both, and this one is what is saved
        self.adamw.param_groups = [group for group in self.param_groups if not group.get("hidden")]
        self.adamw.step()
        for group in self.param_groups:
            if group.get("hidden"):
                self._orthogonal_step(group)
        return loss

    def _orthogonal_step(self, group: Group) -> None:
        weights, gradients, momenta = with_momenta(self, group)
        for weight, gradient, momentum in zip(weights, gradients, momenta, strict=True):
            momentum.lerp_(gradient, 1 - self.momentum)
            step = whole(gradient.lerp(momentum, self.momentum))  # Nesterov's
            pieces = step.split(list(group["rows"]) or [len(step)])
            move = torch.cat(
                [
                    0.2 * max(piece.shape) ** 0.5 * orthogonal(piece, self.iterations)
                    for piece in pieces
                ]
            )
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.sub_(sharded_like(weight, move.to(weight.dtype)), alpha=group["lr"])

    def state_size(self, shape: torch.Size, group: Group) -> int:
        return shape.numel() * (1 if group["hidden"] else 2)


def orthogonal(matrix: Tensor, iterations: int) -> Tensor:
    """U·f(S)·Vᵀ of a matrix U·S·Vᵀ, with f(S) near 1, by a Newton-Schulz iteration: in bfloat16
    on a GPU, else as it is.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    x = x.mT if x.shape[0] > x.shape[1] else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if matrix.shape[0] > matrix.shape[1] else x
