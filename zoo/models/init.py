"""Initialisation, in one place. A parameter's first value depends on (seed, its name, its shape,
the policy) alone.

So the parts that two variants share start equal, whether the model was made on the meta device
first, and on how many devices. A policy gives the standard deviation of a matrix by its name, and
where it says more than the first value (muP), the rate it learns at and the constants it is
multiplied by; biases start at zero, and modules without a matrix (norms) at their own constants.
"""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from zoo.components.embed import Scaled
from zoo.components.head import LinearHead
from zoo.components.residual import DeepNorm, Residual
from zoo.errors import ZooError
from zoo.models.roles import Role, roles
from zoo.nn.attention import MultiHead
from zoo.registry import Component, build, register
from zoo.utils.seeding import derive

READOUTS = (
    "router",
    "classes",
)  # projections to a number of outputs that does not grow with the width


class Policy:
    """An initialisation: the standard deviation of each matrix by its shape and its role.

    What depends on the width of the model reads it from `role.within`, the modules around the
    matrix.
    """

    unscaled = False  # whether its queries are small enough for attn.scale=1

    def std(self, shape: torch.Size, role: Role) -> float:
        """The standard deviation of a matrix; of a fused one, of each projection by itself."""
        raise NotImplementedError

    def rate(self, shape: torch.Size, role: Role) -> float:
        """The factor of a matrix's learning rate."""
        return 1.0

    def settle(self, model: nn.Module) -> None:
        """Set the constants by which the model multiplies. Raises ZooError for a model that it
        is not made for.
        """


@register("init", "fan_in")
class FanIn(Policy):
    """Normal with variance 1/fan-in (LeCun 1998), which keeps the variance of unit inputs;
    embeddings 1/dim.
    """

    def std(self, shape: torch.Size, role: Role) -> float:
        return float(shape[-1]) ** -0.5


@register("init", "bert")
class Normal(Policy):
    """Normal, one std for every matrix, .02 unless given (BERT, Devlin 2018)."""

    def __init__(self, *, std: float = 0.02) -> None:
        self.base = std

    def std(self, shape: torch.Size, role: Role) -> float:
        return self.base


@register("init", "gpt2")
class GPT2(Normal):
    """Normal, std .02; projections into the residual stream (`out`) scaled by 1/√residuals, 2 a
    layer (GPT-2 2019).
    """

    def std(self, shape: torch.Size, role: Role) -> float:
        residual = role.innermost(Residual)
        if residual is None or not role.writes_residual:
            return self.base
        return self.base * residual.depth.residuals**-0.5


@register("init", "t5")
class T5(Policy):
    """Normal with variance 1/fan-in, queries 1/(fan-in·width) for attn.scale=1, embeddings 1
    (T5, Raffel 2019).
    """

    unscaled = True

    def std(self, shape: torch.Size, role: Role) -> float:
        if role.kind in ("embedding", "head"):
            return 1.0
        if (
            role.kind == "table"
        ):  # of relative positions: as wide as the heads, drawn by the model's
            return _model_dim(role.within[0]) ** -0.5
        attention = role.innermost(MultiHead)
        if attention is None or role.projection != "q":
            return float(shape[-1]) ** -0.5
        return float(shape[-1] * attention.head_dim) ** -0.5


@register("init", "deepnorm")
class DeepNormGains(Policy):
    """Xavier-normal, 2/(fan-in + fan-out), times β² for values, `out` and feed-forward (DeepNet,
    Wang 2022); embeddings 1/dim.

    β comes from the depth, by residual=deepnorm; with another residual it is 1.
    """

    def std(self, shape: torch.Size, role: Role) -> float:
        if role.kind in ("embedding", "head"):
            return float(shape[-1]) ** -0.5
        residual = role.innermost(DeepNorm)
        scores = role.projection in ("q", "k", "k_rope")
        gain = 1.0 if residual is None or scores else residual.gain
        return gain * (2 / (shape[-1] + shape[-2])) ** 0.5


@register("init", "mup")
class MaximalUpdate(Policy):
    """Maximal update parametrisation (μP, Yang 2022), by which the best learning rate of a narrow
    model is a wide one's.

    As init=fan_in where arch.dim is `dim` and heads are `head_dim` wide. At m times the width:
    matrices 1/fan-in with 1/m of the rate; embeddings, positions and the head start, and learn, as
    at `dim`, and logits are 1/m of the head's product; routers and classifiers start at 1/m of the
    variance; scores are q·k·√head_dim/width. For an optimiser whose steps have entries of one size
    (adamw, lion). All widths are to grow with arch.dim.
    """

    def __init__(
        self, *, dim: Annotated[int, Ge(1)] = 128, head_dim: Annotated[int, Ge(1)] = 32
    ) -> None:
        self.dim, self.head_dim = dim, head_dim

    def std(self, shape: torch.Size, role: Role) -> float:
        if role.kind in ("embedding", "head", "table"):
            return self.dim**-0.5
        std = shape[-1] ** -0.5
        return (
            std * self._times(_model_dim(role.within[0])) ** -0.5
            if role.projection in READOUTS
            else std
        )

    def rate(self, shape: torch.Size, role: Role) -> float:
        return (
            1.0
            if role.kind in ("embedding", "head", "table")
            else 1 / self._times(_model_dim(role.within[0]))
        )

    def settle(self, model: nn.Module) -> None:
        if isinstance(model.embed, Scaled):
            raise ZooError(
                "init=mup keeps embeddings of one size, and embed=scaled does not: choose"
                " embed=plain"
            )
        for module in model.modules():
            if isinstance(module, MultiHead):
                ours = self.head_dim**0.5 / module.head_dim
                if module.scale not in (module.head_dim**-0.5, ours):
                    raise ZooError(
                        f"init=mup sets the scale of the scores itself: leave {module.word}.scale"
                        f" out"
                    )
                module.scale = ours
            if isinstance(module, LinearHead):
                ours = 1 / self._times(_model_dim(model))
                if module.scale not in (None, ours):
                    raise ZooError(
                        "init=mup sets the scale of the logits itself: choose head.scaled=false"
                    )
                module.scale = ours

    def _times(self, dim: int) -> float:
        """How many times as wide a model is as the one that its rates are known of."""
        return dim / self.dim


def _model_dim(model: Any) -> int:
    return model.embed.weight.shape[-1]


@torch.no_grad()
def initialise(model: nn.Module, policy: Component, seed: int) -> None:
    """Set every parameter of the model, drawing each matrix from a stream of its own."""
    policy = build("init", policy)
    _warn_of_scale(model, policy)
    role_of = roles(model)
    for path, module in model.named_modules():
        own = dict(module.named_parameters(path, recurse=False))
        buffers = dict(module.named_buffers(path, recurse=False))
        constants = getattr(module, "reset_parameters", None)
        if buffers and not constants:
            raise ZooError(
                f"{type(module).__name__} must set its buffer {next(iter(buffers))} in"
                f" reset_parameters(), since"
                " a model made on the meta device has no content"
            )
        matrices = {name: matrix for name, matrix in own.items() if matrix.ndim >= 2}
        if constants and (buffers or not matrices):
            constants()
        else:
            for parameter in own.values():
                parameter.zero_()
        for name, matrix in matrices.items():
            _fill(matrix, _drawn(name, matrix.shape, role_of[name], policy, seed))


def _drawn(name: str, shape: torch.Size, role: Role, policy: Policy, seed: int) -> Tensor:
    """First values of a matrix: each of its projections from the RNG stream of its own name."""
    drawn = []
    for projection, rows, part in role.projections(name):
        size = shape if rows is None else torch.Size([rows, *shape[1:]])
        drawn.append(_normal(size, policy.std(size, part), derive(seed, "init", projection)))
    return torch.cat(drawn) if len(drawn) > 1 else drawn[0]


def _warn_of_scale(model: nn.Module, policy: Policy) -> None:
    """An initial std belongs to the attention's scale: without 1/√width, scores of unit queries
    drown the softmax.
    """
    made_for = "1 (smaller queries)" if policy.unscaled else "1/√width"
    for module in model.modules():
        if (
            isinstance(module, MultiHead)
            and module.head_dim > 1
            and (module.scale == 1) != policy.unscaled
        ):
            word = f"{module.word}.scale"
            other = (
                f"give {word}=1, or another init"
                if policy.unscaled
                else f"give {word}=null, or init=t5"
            )
            warnings.warn(
                f"this init is made for {word}={made_for}, but the model has"
                f" {word}={module.scale:.3g}: {other}",
                stacklevel=3,
            )
            return


def _fill(matrix: Tensor, values: Tensor) -> None:
    """Set a matrix, or of one in shards those of its rows that are here."""
    if isinstance(matrix, DTensor):
        values = distribute_tensor(
            values.to(matrix.device), matrix.device_mesh, matrix.placements, src_data_rank=None
        )
    matrix.copy_(values)


def _normal(shape: torch.Size, std: float, seed: int) -> Tensor:
    """Always drawn in float32 on the CPU, so that neither the device nor the type of the
    parameter changes the draw.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.empty(shape, dtype=torch.float32, device="cpu").normal_(
        0.0, std, generator=generator
    )
