"""Groups of parameters that an optimiser is made with, and how it joins those that it treats
alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.errors import ZooError
from zoo.models.roles import roles
from zoo.registry import Component, build

Group = dict[str, Any]


def parameter_groups(model: nn.Module, init: Component = "fan_in") -> list[Group]:
    """A group for each trained parameter, in the model's order; a tied weight is one parameter.

    decays: whether weight decay is for it: for matrices and embeddings, not for gains and biases.
    factor: of the learning rate, by the initialisation policy of the model.
    rows: of each projection that shares the matrix, where several do.
    hidden: whether it is a matrix within the blocks.
    These names stand in checkpoints.
    """
    policy, parameters = build("init", init), dict(model.named_parameters())
    return [
        {
            "params": [parameters[name]],
            "decays": role.is_matrix,
            "factor": policy.rate(parameters[name].shape, role) if role.is_matrix else 1.0,
            "rows": tuple(role.splits.values()),
            "hidden": role.is_matrix and role.block is not None,
        }
        for name, role in roles(model).items()
        if parameters[name].requires_grad
    ]


def state_size(model: nn.Module, optimizer: Component, init: Component) -> int:
    """Count the numbers that an optimiser keeps between steps; the model may be on the meta device.

    Raises ZooError for an optimiser that cannot be made, or not for this model.
    """
    groups = parameter_groups(model, init)
    small = [group | {"params": [torch.zeros([1] * _only(group).ndim)]} for group in groups]
    built = build("optim", optimizer, small)
    return sum(built.state_size(_only(group).shape, group) for group in groups)


def _only(group: Group) -> nn.Parameter:
    """The one parameter of a group that `parameter_groups` gives."""
    return group["params"][0]


def joined(groups: list[Group], lr: float, weight_decay: float, *by: str) -> list[Group]:
    """Join the groups that agree in decay, factor and `by`, with their rates: a few groups are
    faster than many.

    Groups that decay come first, and of these the ones at the full rate. For a matrix
    lr·weight_decay is the same whatever its factor.
    """
    merged: dict[tuple[Any, ...], Group] = {}
    for group in groups:
        shared = {key: group[key] for key in ("decays", "factor", *by)}
        key = tuple(shared.values())
        if key not in merged:
            decay = weight_decay / group["factor"] if group["decays"] else 0.0
            rates = {"lr": lr * group["factor"], "weight_decay": decay}
            merged[key] = {"params": [], **shared, **rates}
        merged[key]["params"] += group["params"]
    return sorted(merged.values(), key=lambda group: (not group["decays"], group["factor"] != 1))


def refuse_factors(name: str, groups: list[Group]) -> None:
    """Refuse rates by matrix (muP) for an optimiser that sizes its steps by the matrix; they are
    for steps like Adam's.
    """
    if any(group["factor"] != 1 for group in groups):
        raise ZooError(
            f"init=mup gives matrices rates for steps like Adam's, and optim={name} sizes its"
            f" steps by the matrix:"
            " choose optim=adamw or lion, or another init"
        )
