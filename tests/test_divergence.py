"""Which numbers are looked at before a checkpoint is kept: all that training has made."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.helpers.components import each, loss_of, make
from zoo import optim, registry
from zoo.checkpoints import weights as checkpoint_weights


@each("optim")
def test_a_number_that_is_not_finite_is_found_wherever_training_keeps_it(
    optim: dict[str, Any],
) -> None:
    """Of every optimiser, in the last number of each weight and of each tensor that it keeps of
    one.
    """
    checkpoint, model = trained(optim)
    state = checkpoint["optimizer_states"][0]["state"]
    tensors = [
        *checkpoint["state_dict"].values(),
        *(value for kept in state.values() for value in kept.values()),
    ]
    learned = [
        tensor
        for tensor in tensors
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    ]
    assert checkpoint_weights.not_finite(checkpoint_weights.learned(checkpoint, model)) is None
    for number, tensor in enumerate(learned):
        last = tensor.view(-1)[-1:]
        before = last.clone()
        last.fill_((math.nan, math.inf, -math.inf)[number % 3])
        assert (
            checkpoint_weights.not_finite(checkpoint_weights.learned(checkpoint, model)) is not None
        )
        last.copy_(before)
    assert checkpoint_weights.not_finite(checkpoint_weights.learned(checkpoint, model)) is None


def trained(optimizer: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """A checkpoint's tensors after a step, and their model."""
    model = make(arch={"layers": 1})
    made = registry.build("optim", optimizer, optim.parameter_groups(model))
    loss_of(model).backward()
    made.step()
    weights = {f"model.{name}": tensor.detach() for name, tensor in model.state_dict().items()}
    return {"state_dict": weights, "optimizer_states": [made.state_dict()]}, model


@pytest.mark.parametrize(("weight", "kept"), [(2.0**62, True), (2.0**64, False)])
def test_a_weight_whose_square_float32_cannot_hold_is_not_kept(weight: float, kept: bool) -> None:
    """The loss of its next step would be no number; a second moment may be as large."""
    assert math.isfinite(torch.tensor(weight).square().item()) is kept
    checkpoint, model = trained({"name": "adamw"})
    checkpoint["optimizer_states"][0]["state"][0]["exp_avg_sq"][0, 0] = 2.0**100
    assert checkpoint_weights.not_finite(checkpoint_weights.learned(checkpoint, model)) is None
    checkpoint["state_dict"]["model.embed.weight"][0, 0] = weight
    assert (
        checkpoint_weights.not_finite(checkpoint_weights.learned(checkpoint, model)) is None
    ) is kept


def test_a_constant_that_is_infinite_is_no_reason() -> None:
    checkpoint, model = trained({"name": "adamw"})
    checkpoint["state_dict"]["model.stack.mask"] = torch.tensor([-math.inf])
    model.stack.register_buffer("mask", torch.tensor([-math.inf]))
    assert checkpoint_weights.not_finite(checkpoint_weights.learned(checkpoint, model)) is None
