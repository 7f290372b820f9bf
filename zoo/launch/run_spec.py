"""What a run is before it starts: its configuration, and its model and costs, each made once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zoo.config import Config

if TYPE_CHECKING:
    from zoo.models.families import Model


@dataclass(frozen=True)
class RunSpec:
    """A run as a command composed it: checked, costed and trained as this one object."""

    config: Config
    overrides: Sequence[str] = ()  # that gave it

    @functools.cached_property
    def model(self) -> Model:
        """The model on the meta device, where it costs no memory; training fills this very one.

        Raises ZooError for components that do not fit together.
        """
        from zoo import models

        return models.build(self.config, device="meta")

    @functools.cached_property
    def parameters(self) -> dict[str, int]:
        """The number of parameters of each part."""
        from zoo import cost

        return cost.parameters(self.model)

    @functools.cached_property
    def flops_per_token(self) -> int:
        """FLOPs per token of a training step: of the forward and the backward pass."""
        from zoo import cost

        forward = cost.flops(self.model, self.config["loader"]["length"])
        return cost.BACKWARD_AND_FORWARD * forward
