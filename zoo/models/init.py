"""Initialisation, in one place. A parameter's first value depends on (seed, its name, its shape, the policy) alone.

So the parts that two variants share start equal, whether the model was made on the meta device first, and on how many
devices. A policy gives the standard deviation of a matrix by its name, and where it says more than the first value (muP), the
rate it learns at and the constants it is multiplied by; biases start at zero, and modules without a matrix (norms) at their own
constants.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, cast

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from zoo.components.embed import Scaled
from zoo.components.head import LinearHead
from zoo.components.pos import Position
from zoo.components.residual import DeepNorm, Residual
from zoo.errors import ZooError
from zoo.nn.attention import MultiHead
from zoo.registry import Component, build, register
from zoo.utils.seeding import derive


class Policy:
    """What a policy is: the standard deviation of a matrix by its name, its shape and the modules that it is in."""

    unscaled = False  # whether its queries are small enough for attn.scale=1

    def std(self, name: str, shape: torch.Size, within: Sequence[nn.Module]) -> float:
        """Of a matrix `name`; `within` are the modules around it, from the model to the one that owns it."""
        raise NotImplementedError

    def rate(self, name: str, shape: torch.Size, within: Sequence[nn.Module]) -> float:
        """The factor of its learning rate, asked as for std."""
        return 1.0

    def settle(self, model: nn.Module) -> None:
        """Set the constants by which the model multiplies. Raises ZooError for a model that it is not made for."""


def modules_around(model: nn.Module, path: str) -> list[nn.Module]:
    """From the model to the module at this path."""
    words = path.split(".") if path else []
    return [model.get_submodule(".".join(words[:depth])) for depth in range(len(words) + 1)]


def innermost(within: Sequence[nn.Module], kind: type[Any]) -> Any:
    """The closest of these modules that is of a kind, or None."""
    return next((module for module in reversed(within) if isinstance(module, kind)), None)


@register("init", "fan_in")
class FanIn(Policy):
    """Normal with variance 1/fan-in (LeCun 1998), which keeps the variance of unit inputs; embeddings 1/dim."""

    def std(self, name: str, shape: torch.Size, within: Sequence[nn.Module]) -> float:
        return float(shape[-1]) ** -0.5


@register("init", "bert")
class Normal(Policy):
    """Normal, one std for every matrix, .02 unless given (BERT, Devlin 2018)."""

    def __init__(self, *, std: Annotated[float, Ge(0)] = 0.02) -> None:
        self.base = std

    def std(self, name: str, shape: torch.Size, within: Sequence[nn.Module]) -> float:
        return self.base


@register("init", "gpt2")
class GPT2(Normal):
    """Normal, std .02; projections into the residual stream (`out`) scaled by 1/√residuals, 2 a layer (GPT-2 2019)."""

    def std(self, name: str, shape: torch.Size, within: Sequence[nn.Module]) -> float:
        residual = innermost(within, Residual)
        return self.base * (
            residual.depth.residuals**-0.5 if residual and name.endswith(".out.weight") else 1.0
        )


@register("init", "t5")
class T5(Policy):
    """Normal with variance 1/fan-in, queries 1/(fan-in·width) for attn.scale=1, embeddings 1 (T5, Raffel 2019)."""

    unscaled = True

    def std(self, name: str, shape: torch.Size, within: Sequence[nn.Module]) -> float:
        if name in ("embed.weight", "head.weight"):
            return 1.0
        if isinstance(within[-1], Position):  # a score a head, from a table as wide as the heads
            return float(cast(Any, within[0]).embed.weight.shape[-1]) ** -0.5
        attention = innermost(within, MultiHead)
        return (
            float(shape[-1] * (attention.width if attention and name.endswith(".q.weight") else 1))
            ** -0.5
        )


@register("init", "deepnorm")
class DeepNormGains(Policy):
    """Xavier-normal, 2/(fan-in + fan-out), times β² for values, `out` and feed-forward (DeepNet, Wang 2022); embeddings 1/dim.

    β comes from the depth, by residual=deepnorm; with another residual it is 1.
    """

    def std(self, name: str, shape: torch.Size, within: Sequence[nn.Module]) -> float:
        if len(within) < 3:  # embeddings and the head, which are no part of a stack
            return float(shape[-1]) ** -0.5
        residual = innermost(within, DeepNorm)
        gain = (
            1.0
            if residual is None or name.endswith((".q.weight", ".k.weight", ".k_rope.weight"))
            else residual.gain
        )
        return gain * (2 / (shape[-1] + shape[-2])) ** 0.5


@register("init", "mup")
class MaximalUpdate(Policy):
    """Maximal update parametrisation (μP, Yang 2022), by which the best learning rate of a narrow model is a wide one's.

    As init=fan_in where arch.dim is `dim` and heads are `head_dim` wide. At m times the width: matrices 1/fan-in with 1/m of
    the rate; embeddings, positions and the head start, and learn, as at `dim`, and logits are 1/m of the head's product;
    routers and classifiers start at 1/m of the variance; scores are q·k·√head_dim/width. For an optimiser whose steps have
    entries of one size (adamw, lion). All widths are to grow with arch.dim.
    """

    def __init__(
        self, *, dim: Annotated[int, Ge(1)] = 128, head_dim: Annotated[int, Ge(1)] = 32
    ) -> None:
        self.dim, self.head_dim = dim, head_dim

    def std(self, name: str, shape: torch.Size, within: Sequence[nn.Module]) -> float:
        if self._of_fixed_size(name, within):
            return self.dim**-0.5
        narrowing = (
            self._times(within[0]) ** -0.5
            if name.endswith(("router.weight", "classes.weight"))
            else 1.0
        )
        return shape[-1] ** -0.5 * narrowing

    def rate(self, name: str, shape: torch.Size, within: Sequence[nn.Module]) -> float:
        return 1.0 if self._of_fixed_size(name, within) else 1 / self._times(within[0])

    def settle(self, model: nn.Module) -> None:
        if isinstance(model.embed, Scaled):
            raise ZooError(
                "init=mup keeps embeddings of one size, and embed=scaled does not: choose embed=plain"
            )
        for module in model.modules():
            if isinstance(module, MultiHead):
                ours = self.head_dim**0.5 / module.width
                if module.scale not in (module.width**-0.5, ours):
                    raise ZooError(
                        f"init=mup sets the scale of the scores itself: leave {module.word}.scale out"
                    )
                module.scale = ours
            if isinstance(module, LinearHead):
                ours = 1 / self._times(model)
                if module.scale not in (None, ours):
                    raise ZooError(
                        "init=mup sets the scale of the logits itself: choose head.scaled=false"
                    )
                module.scale = ours

    def _times(self, model: Any) -> float:
        return model.embed.weight.shape[-1] / self.dim

    def _of_fixed_size(self, name: str, within: Sequence[nn.Module]) -> bool:
        """Whether one of its sides is a vocabulary or the like, whatever the width of the model."""
        tables = isinstance(within[-1], nn.Embedding) or innermost(within, Position) is not None
        return tables or (isinstance(within[-1], LinearHead) and name.endswith("weight"))


@torch.no_grad()
def initialise(model: nn.Module, policy: Component, seed: int) -> None:
    """Set every parameter of the model, drawing each matrix from a stream of its own."""
    policy = build("init", policy)
    _warn_of_scale(model, policy)
    for path, module in model.named_modules():
        own, buffers = (
            dict(module.named_parameters(path, recurse=False)),
            dict(module.named_buffers(path, recurse=False)),
        )
        constants = getattr(module, "reset_parameters", None)
        if buffers and not constants:
            raise ZooError(
                f"{type(module).__name__} must set its buffer {next(iter(buffers))} in reset_parameters(), since"
                " a model made on the meta device has no content"
            )
        matrices = {name: parameter for name, parameter in own.items() if parameter.ndim >= 2}
        if constants and (buffers or not matrices):
            constants()
        else:
            for parameter in own.values():
                parameter.zero_()
        within = modules_around(model, path) if matrices else []
        for name, matrix in matrices.items():
            drawn = [
                _normal(shape, policy.std(part, shape, within), derive(seed, "init", part))
                for part, shape in _parts(module, name, matrix)
            ]
            _fill(matrix, torch.cat(drawn) if len(drawn) > 1 else drawn[0])


def _warn_of_scale(model: nn.Module, policy: Policy) -> None:
    """An initial std belongs to the attention's scale: without 1/√width, scores of unit queries drown the softmax."""
    made_for = "1 (smaller queries)" if policy.unscaled else "1/√width"
    for module in model.modules():
        if (
            isinstance(module, MultiHead)
            and module.width > 1
            and (module.scale == 1) != policy.unscaled
        ):
            word = f"{module.word}.scale"
            other = (
                f"give {word}=1, or another init"
                if policy.unscaled
                else f"give {word}=null, or init=t5"
            )
            warnings.warn(
                f"this init is made for {word}={made_for}, but the model has {word}={module.scale:.3g}: {other}",
                stacklevel=3,
            )
            return


def _parts(module: nn.Module, name: str, matrix: Tensor) -> Iterator[tuple[str, torch.Size]]:
    """A matrix by its name; where several projections share it (a module with `rows`), each by its own, beside the module."""
    rows: Any = getattr(module, "rows", None)
    if rows is None:
        yield name, matrix.shape
        return
    *path, _, kind = name.split(".")
    for part, count in rows.items():
        yield ".".join([*path, part, kind]), torch.Size([count, *matrix.shape[1:]])


def _fill(matrix: Tensor, values: Tensor) -> None:
    """Set a matrix, or of one in shards those of its rows that are here."""
    if isinstance(matrix, DTensor):
        values = distribute_tensor(
            values.to(matrix.device), matrix.device_mesh, matrix.placements, src_data_rank=None
        )
    matrix.copy_(values)


def _normal(shape: torch.Size, std: float, seed: int) -> Tensor:
    """Always drawn in float32 on the CPU, so that neither the device nor the type of the parameter changes the draw."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.empty(shape, dtype=torch.float32, device="cpu").normal_(
        0.0, std, generator=generator
    )
