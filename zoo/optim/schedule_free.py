"""Schedule-free AdamW, which averages its weights in place of a falling learning rate."""

from __future__ import annotations

import contextlib
from typing import Annotated

import torch
from annotated_types import Ge, Lt
from schedulefree import AdamWScheduleFreeReference

from zoo.optim.groups import Group, joined
from zoo.registry import register


@register("optim", "schedule_free")
class ScheduleFree(AdamWScheduleFreeReference):
    """AdamW whose rate need not fall, since the mean of its weights does as well (Schedule-Free,
    Defazio 2024).

    For schedule=constant. The model learns between the newest weights and their mean, and is
    evaluated and saved as the mean. This is the authors' form that keeps all three, so that
    training resumes from a mean to the bit: four numbers per parameter, twice AdamW's.
    """

    schedule = "constant"  # which it is made for
    # in its groups, beside options
    progress = ("k", "train_mode", "weight_sum", "lr_max", "scheduled_lr")

    def __init__(
        self,
        groups: list[Group],
        *,
        lr: Annotated[float, Ge(0)] = 5e-3,
        weight_decay: Annotated[float, Ge(0)] = 0.1,
        beta1: Annotated[float, Ge(0), Lt(1)] = 0.9,
        beta2: Annotated[float, Ge(0), Lt(1)] = 0.95,
        eps: Annotated[float, Ge(0)] = 1e-8,
    ) -> None:
        super().__init__(joined(groups, lr, weight_decay), lr=lr, betas=(beta1, beta2), eps=eps)
        self.train()

    def train(self) -> None:
        """Put the training weights back into the model."""
        with contextlib.redirect_stdout(None):  # it prints each time
            super().train()

    def eval(self) -> None:
        """Put the mean of the weights into the model."""
        with contextlib.redirect_stdout(None):
            super().eval()

    def state_size(self, shape: torch.Size, group: Group) -> int:
        return 4 * shape.numel()
