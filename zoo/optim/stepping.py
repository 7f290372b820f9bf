"""Closures, momenta and sharded tensors in a step, for the optimisers written here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from zoo.optim.groups import Group


def evaluate_closure(closure: Callable[[], Any] | None) -> Any:
    """Call the closure of a step with gradients enabled, where there is one."""
    with torch.enable_grad():
        return None if closure is None else closure()


def with_momenta(
    optimizer: torch.optim.Optimizer, group: Group
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The weights of a group that have gradients, the gradients, and the momenta, which start at
    zero.
    """
    weights = [weight for weight in group["params"] if weight.grad is not None]
    for weight in weights:
        if "momentum" not in optimizer.state[weight]:
            optimizer.state[weight]["momentum"] = torch.zeros_like(
                weight, memory_format=torch.preserve_format
            )
    momenta = [optimizer.state[weight]["momentum"] for weight in weights]
    return weights, [cast(Tensor, weight.grad) for weight in weights], momenta


def is_sharded(tensor: Tensor) -> bool:
    """Whether each rank holds some of its rows (zoo.training.fsdp); asked without importing
    DTensor, which is slow.
    """
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor from all ranks."""
    return cast(Tensor, cast(Any, tensor).full_tensor()) if is_sharded(tensor) else tensor


def sharded_like(like: Any, tensor: Tensor) -> Tensor:
    """Shard a tensor that every rank holds as another one is sharded."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
