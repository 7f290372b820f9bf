"""Lion, which steps by the sign of its momentum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt

from zoo.optim.groups import Group, joined
from zoo.optim.stepping import evaluate_closure, with_momenta
from zoo.registry import register
from zoo.utils import compat


@register("optim", "lion")
class Lion(torch.optim.Optimizer):
    """w -= lr·(sign(β₁·m + (1 - β₁)·g) + decay·w), then m = β₂·m + (1 - β₂)·g (Lion, Chen 2023);
    half of Adam's memory.

    Its rate is some three to ten times smaller than AdamW's, and its decay as much larger.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        lr: Annotated[float, Ge(0)] = 5e-4,
        weight_decay: Annotated[float, Ge(0)] = 0.5,
        beta1: Annotated[float, Ge(0), Lt(1)] = 0.9,
        beta2: Annotated[float, Ge(0), Lt(1)] = 0.99,
    ) -> None:
        self.beta1, self.beta2 = beta1, beta2
        super().__init__(joined(groups, lr, weight_decay), {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            weights, gradients, momenta = with_momenta(self, group)
            if weights:
                signs = compat.foreach("lerp")(momenta, gradients, 1 - self.beta1)
                compat.foreach("sign_")(signs)
                compat.foreach("mul_")(weights, 1 - group["lr"] * group["weight_decay"])
                compat.foreach("add_")(weights, signs, alpha=-group["lr"])
                compat.foreach("lerp_")(momenta, gradients, 1 - self.beta2)
        return loss

    def state_size(self, shape: torch.Size, group: Group) -> int:
        return shape.numel()
