"""Initialisation, in one place. A parameter's first value depends on (seed, its name, its shape, the policy) alone.

So the parts that two variants share start equal, whether the model was made on the meta device first, and on how many
devices. A policy gives the standard deviation of a matrix by its name; biases start at zero, and modules without a matrix
(norms) at their own constants. Wiring of a policy: how many times the stack adds to its residual stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from zoo.registry import Component, ZooError, build, register
from zoo.streams import derive


@register("init", "fan_in")
class FanIn:
    """Normal with variance 1/fan-in (LeCun 1998), which keeps the variance of unit inputs; embeddings 1/dim."""

    def __init__(self, residuals: int) -> None:
        pass

    def std(self, name: str, shape: torch.Size) -> float:
        return float(shape[-1]) ** -0.5


@register("init", "gpt2")
class GPT2:
    """Normal, std .02; projections into the residual stream (`out`) scaled by 1/√residuals, 2 a layer (GPT-2 2019)."""

    def __init__(self, residuals: int, *, std: float = 0.02) -> None:
        self.base, self.residuals = std, residuals

    def std(self, name: str, shape: torch.Size) -> float:
        return self.base * (self.residuals**-0.5 if name.endswith(".out.weight") else 1.0)


@torch.no_grad()
def initialise(model: nn.Module, policy: Component, seed: int) -> None:
    """Set every parameter of the model, drawing each matrix from a stream of its own."""
    policy = build("init", policy, sum(hasattr(module, "closing_norm") for module in model.modules()))
    for path, module in model.named_modules():
        own, buffers = dict(module.named_parameters(path, recurse=False)), dict(module.named_buffers(path, recurse=False))
        constants = getattr(module, "reset_parameters", None)
        if buffers and not constants:
            raise ZooError(f"{type(module).__name__} must set its buffer {next(iter(buffers))} in reset_parameters(), since"
                           " a model made on the meta device has no content")
        matrices = {name: parameter for name, parameter in own.items() if parameter.ndim >= 2}
        if constants and (buffers or not matrices):
            constants()
        else:
            for parameter in own.values():
                parameter.zero_()
        for name, matrix in matrices.items():
            for part, piece in _parts(module, name, matrix):
                piece.copy_(_normal(piece.shape, policy.std(part, piece.shape), derive(seed, "init", part)))


def _parts(module: nn.Module, name: str, matrix: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A matrix by its name; where several projections share it (a module with `rows`), each by its own, beside the module."""
    rows: Any = getattr(module, "rows", None)
    if rows is None:
        yield name, matrix
        return
    *path, _, kind = name.split(".")
    for part, piece in zip(rows, matrix.split(list(rows.values())), strict=True):
        yield ".".join([*path, part, kind]), piece


def _normal(shape: torch.Size, std: float, seed: int) -> Tensor:
    """Always drawn in float32 on the CPU, so that neither the device nor the type of the parameter changes the draw."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.empty(shape, dtype=torch.float32, device="cpu").normal_(0.0, std, generator=generator)
