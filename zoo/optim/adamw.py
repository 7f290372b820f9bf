"""AdamW."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Lt

from zoo.optim.groups import Group, joined
from zoo.registry import register


@register("optim", "adamw")
class AdamW(torch.optim.AdamW):
    """AdamW (Loshchilov & Hutter 2019), torch's fused kernel; weight decay on matrices only."""

    def __init__(
        self,
        groups: list[Group],
        *,
        lr: Annotated[float, Ge(0)] = 2e-3,
        weight_decay: Annotated[float, Ge(0)] = 0.1,
        beta1: Annotated[float, Ge(0), Lt(1)] = 0.9,
        beta2: Annotated[float, Ge(0), Lt(1)] = 0.95,
        eps: Annotated[float, Ge(0)] = 1e-8,
    ) -> None:
        super().__init__(
            joined(groups, lr, weight_decay), lr=lr, betas=(beta1, beta2), eps=eps, fused=True
        )
        # the kernel could undo a loss scale by itself, but clipping comes before it and needs the
        # true gradients
        self._step_supports_amp_scaling = False

    def state_size(self, shape: torch.Size, group: Group) -> int:
        return 2 * shape.numel()
