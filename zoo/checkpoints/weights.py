"""Loads the model of a checkpoint, and refuses weights that do not fit or are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zoo.checkpoints.reading import Damaged, read_checkpoint
from zoo.errors import ZooError

LARGEST = (
    2.0**63
)  # of a weight: of a larger one, float32 can hardly hold the square, which norms take


Learned = tuple[str, Any, float]  # a name, a tensor, and below what its numbers have to be


def load_model(path: str | Path, device: str = "cpu") -> tuple[Any, Any, dict[str, Any]]:
    """The trained model, its tokenizer and its configuration, from a run's folder or a checkpoint file.

    Raises ZooError where the weights do not fit the configuration they came with, or are not finite, naming the first of them.
    """
    from zoo import config as configuration
    from zoo import models
    from zoo.data import tokenizers

    checkpoint = read_checkpoint(path)
    configuration.discover()
    config, saved = checkpoint["zoo"]["config"], checkpoint["zoo"]["tokenizer"]
    tokenizer = tokenizers.loads(saved)
    model = models.build(config, device="meta").to_empty(device=device)
    check_fit(model, weights(checkpoint), str(path))
    model.load_state_dict(weights(checkpoint))
    refuse_not_finite(parameters(model), path)
    return model.eval(), tokenizer, config


def weights(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own part of a LightningModule's state."""
    state = checkpoint["state_dict"]
    return {
        name.removeprefix("model."): tensor
        for name, tensor in state.items()
        if name.startswith("model.")
    }


def learned(checkpoint: Mapping[str, Any], model: Any) -> Iterator[Learned]:
    """What training has made of a model: its parameters, and what the optimiser keeps of them, each under a name for people.

    Not its buffers: a constant among them, as a mask, may be infinite.
    """
    found = weights(checkpoint)
    yield from ((name, found[name], bound) for name, _, bound in parameters(model) if name in found)
    for optimizer in checkpoint.get("optimizer_states") or ():
        for state in optimizer["state"].values():
            tensors = {name: value for name, value in state.items() if hasattr(value, "shape")}
            yield from (
                (f"the optimiser's {name}", tensor, math.inf) for name, tensor in tensors.items()
            )


def parameters(model: Any) -> Iterator[Learned]:
    yield from ((name, parameter, LARGEST) for name, parameter in model.named_parameters())


def not_finite(tensors: Iterable[Learned]) -> str | None:
    """The name of the first tensor that holds NaN, infinity, or too large a number; by its extremes, in one pass."""
    import torch

    for name, tensor, bound in tensors:
        for part in getattr(tensor, "parts", [tensor]):
            if part.is_floating_point() and part.numel():
                low, high = (extreme.item() for extreme in torch.aminmax(part))
                if not -bound < low <= high < bound:
                    return name
    return None


def refuse_not_finite(tensors: Iterable[Learned], what: str | Path) -> None:
    """Raises Damaged for a checkpoint, or another source of weights, that is of a run that had diverged."""
    name = not_finite(tensors)
    if name is not None:
        raise Damaged(
            f"{what} is of a run that had diverged: {name} holds NaN, infinity or a number near it"
        )


def check_fit(model: Any, weights: Mapping[str, Any], source: str) -> None:
    """Raises ZooError naming the first weight that is missing, superfluous or of another shape."""
    ours = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in dict.fromkeys([*ours, *theirs]):
        if ours.get(name) != theirs.get(name):
            ours_, theirs_ = ours.get(name, "no such weight"), theirs.get(name, "no such weight")
            raise ZooError(
                f"{source} does not fit its configuration: {name} is {theirs_} there and {ours_} here"
            )
