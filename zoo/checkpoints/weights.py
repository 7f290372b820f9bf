"""Loads the model of a checkpoint, and refuses weights that do not fit or are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zoo.checkpoints.reading import Damaged, read_checkpoint
from zoo.errors import ZooError

LARGEST = 2.0**63  # of a weight: norms take squares, which float32 can hardly hold beyond it
Learned = tuple[str, Any, float]  # a name, a tensor, and the bound of its numbers


def load_model(path: str | Path, device: str = "cpu") -> tuple[Any, Any, dict[str, Any]]:
    """Load a model, its tokenizer and its configuration from a run's folder or a checkpoint.

    Raises ZooError naming the first weight that does not fit the configuration or is not finite.
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
    """The parameters and the optimiser's state in a checkpoint, each under a readable name.

    Not the buffers: a constant among them, as a mask, may be infinite.
    """
    state_dict = weights(checkpoint)
    for name, _, bound in parameters(model):
        if name in state_dict:
            yield name, state_dict[name], bound
    for optimizer in checkpoint.get("optimizer_states") or ():
        for state in optimizer["state"].values():
            for name, value in state.items():
                if hasattr(value, "shape"):
                    yield f"the optimiser's {name}", value, math.inf


def parameters(model: Any) -> Iterator[Learned]:
    """The parameters of a model with the bound of a weight."""
    for name, parameter in model.named_parameters():
        yield name, parameter, LARGEST


def not_finite(tensors: Iterable[Learned]) -> str | None:
    """The name of the first tensor with NaN, infinity, or too large a number, by its extremes."""
    import torch

    for name, tensor, bound in tensors:
        for part in getattr(tensor, "parts", [tensor]):
            if part.is_floating_point() and part.numel():
                low, high = (extreme.item() for extreme in torch.aminmax(part))
                if not -bound < low <= high < bound:
                    return name
    return None


def refuse_not_finite(tensors: Iterable[Learned], what: str | Path) -> None:
    """Raises Damaged for weights of a run that had diverged."""
    name = not_finite(tensors)
    if name is not None:
        raise Damaged(
            f"{what} is of a run that had diverged: {name} holds NaN, infinity or a number near it"
        )


def check_fit(model: Any, weights: Mapping[str, Any], source: str) -> None:
    """Raises ZooError naming the first weight that is missing, superfluous or of another shape."""
    ours, theirs = _shapes(model.state_dict()), _shapes(weights)
    for name in dict.fromkeys([*ours, *theirs]):
        here, there = (shapes.get(name, "no such weight") for shapes in (ours, theirs))
        if here != there:
            raise ZooError(
                f"{source} does not fit its configuration: {name} is {there} there and {here} here"
            )


def _shapes(state_dict: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state_dict.items()}
