"""Adafactor, which keeps means of second moments over rows and columns."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge

from zoo.errors import ZooError
from zoo.optim.groups import Group, joined, refuse_factors
from zoo.optim.stepping import is_sharded
from zoo.registry import register


@register("optim", "adafactor")
class Adafactor(torch.optim.Adafactor):
    """Adafactor (Shazeer & Stern 2018), torch's: of a matrix's second moments only means of rows
    and columns are kept.

    A step has the size of lr times the weight's own; lr falls at least as 1/√step. `clip` bounds a
    step before that.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        lr: Annotated[float, Ge(0)] = 2e-2,
        weight_decay: Annotated[float, Ge(0)] = 0.0,
        beta2_decay: Annotated[float, Ge(0)] = 0.8,
        clip: Annotated[float, Ge(1)] = 1.0,
    ) -> None:
        refuse_factors("adafactor", groups)
        weights = [weight for group in groups for weight in group["params"]]
        if any(map(is_sharded, weights)):  # their norms are not known
            raise ZooError(
                "optim=adafactor cannot work on shards: choose optim=adamw, lion or muon, or"
                " trainer.strategy=ddp"
            )
        super().__init__(joined(groups, lr, weight_decay), lr=lr, beta2_decay=-beta2_decay, d=clip)

    def state_size(self, shape: torch.Size, group: Group) -> int:
        if len(shape) < 2:
            return shape.numel()
        return shape.numel() // shape[-1] + shape.numel() // shape[-2]
