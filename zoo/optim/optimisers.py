"""How the weights are moved: optimisers. Wiring: groups of parameters, as `parameter_groups` gives them.

An optimiser joins the groups that it treats alike, and `kept` says how many numbers it keeps of a parameter between steps.
One that learns at other weights than those to be used has `train` and `eval`, which put the ones or the others into the model;
one that is made for a schedule names it as `schedule`, and as `progress` what its groups hold that is no option.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Annotated, Any, cast

import torch
from annotated_types import Ge, Lt
from schedulefree import AdamWScheduleFreeReference
from torch import Tensor, nn

from zoo.errors import ZooError
from zoo.models.roles import roles
from zoo.registry import Component, build, register

Group = dict[str, Any]
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # of x, x³ and x⁵ (Jordan 2024)


def parameter_groups(model: nn.Module, init: Component = "fan_in") -> list[Group]:
    """A group for each parameter that is trained, in the model's order; a tied weight is one parameter.

    decays: whether it is a matrix or an embedding, which weight decay is for, rather than a gain or a bias.
    factor: of the learning rate, by the initialisation policy that the model was made with.
    hidden: whether it is a matrix within the blocks. rows: of the projections that share it, if several do.
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


def states(model: nn.Module, optimizer: Component, init: Component) -> int:
    """Numbers that an optimiser keeps between steps. The model may be on the meta device.

    Raises ZooError for an optimiser that cannot be made, or not for this model.
    """
    groups = parameter_groups(model, init)
    small = [
        group | {"params": [torch.zeros([1] * parameter.ndim) for parameter in group["params"]]}
        for group in groups
    ]
    made = build("optim", optimizer, small)
    return sum(
        made.kept(parameter.shape, group) for group in groups for parameter in group["params"]
    )


def joined(groups: list[Group], lr: float, weight_decay: float, *by: str) -> list[Group]:
    """These groups with their rate and their decay, as one where they agree in these and in `by`: a few are faster than many.

    What decays, and then what has the full rate, comes first. lr·weight_decay of a matrix does not depend on its factor.
    """
    found: dict[tuple[Any, ...], Group] = {}
    for group in groups:
        agreed = {word: group[word] for word in ("decays", "factor", *by)}
        rate = {
            "lr": lr * agreed["factor"],
            "weight_decay": weight_decay / agreed["factor"] if agreed["decays"] else 0.0,
        }
        found.setdefault(tuple(agreed.values()), {"params": [], **agreed, **rate})["params"] += (
            group["params"]
        )
    return sorted(found.values(), key=lambda group: (not group["decays"], group["factor"] != 1))


def refuse_factors(name: str, groups: list[Group]) -> None:
    """Of an optimiser whose step is sized by the matrix, where factors are for steps whose entries have one size."""
    if any(group["factor"] != 1 for group in groups):
        raise ZooError(
            f"init=mup gives matrices rates for steps like Adam's, and optim={name} sizes its steps by the matrix:"
            " choose optim=adamw or lion, or another init"
        )


@register("optim", "adamw")
class AdamW(torch.optim.AdamW):
    """AdamW (Loshchilov & Hutter 2019), torch's fused kernel; weight decay on matrices only."""

    def __init__(
        self,
        groups: list[Group],
        *,
        lr: Annotated[float, Ge(0)] = 2e-3,
        weight_decay: Annotated[float, Ge(0)] = 0.1,
        beta1: Annotated[float, Ge(0), Lt(1)] = 0.9,
        beta2: Annotated[float, Ge(0), Lt(1)] = 0.95,
        eps: Annotated[float, Ge(0)] = 1e-8,
    ) -> None:
        super().__init__(
            joined(groups, lr, weight_decay), lr=lr, betas=(beta1, beta2), eps=eps, fused=True
        )
        # the kernel could undo a loss scale by itself, but clipping comes before it and needs the true gradients
        self._step_supports_amp_scaling = False

    def kept(self, shape: torch.Size, group: Group) -> int:
        return 2 * shape.numel()


@register("optim", "lion")
class Lion(torch.optim.Optimizer):
    """w -= lr·(sign(β₁·m + (1 - β₁)·g) + decay·w), then m = β₂·m + (1 - β₂)·g (Lion, Chen 2023); half of Adam's memory.

    Its rate is some three to ten times smaller than AdamW's, and its decay as much larger.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        lr: Annotated[float, Ge(0)] = 5e-4,
        weight_decay: Annotated[float, Ge(0)] = 0.5,
        beta1: Annotated[float, Ge(0), Lt(1)] = 0.9,
        beta2: Annotated[float, Ge(0), Lt(1)] = 0.99,
    ) -> None:
        self.beta1, self.beta2 = beta1, beta2
        super().__init__(joined(groups, lr, weight_decay), {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _called(closure)
        for group in self.param_groups:
            weights, gradients, momenta = _with_gradients(self, group)
            if weights:
                signs = torch._foreach_lerp(momenta, gradients, 1 - self.beta1)
                torch._foreach_sign_(signs)
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(weights, signs, alpha=-group["lr"])
                torch._foreach_lerp_(momenta, gradients, 1 - self.beta2)
        return loss

    def kept(self, shape: torch.Size, group: Group) -> int:
        return shape.numel()


@register("optim", "adafactor")
class Adafactor(torch.optim.Adafactor):
    """Adafactor (Shazeer & Stern 2018), torch's: of a matrix's second moments only means of rows and columns are kept.

    A step has the size of lr times the weight's own; lr falls at least as 1/√step. `clip` bounds a step before that.
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
        if any(
            _in_shards(parameter) for group in groups for parameter in group["params"]
        ):  # whose norms are not to be had
            raise ZooError(
                "optim=adafactor cannot work on shards: choose optim=adamw, lion or muon, or trainer.strategy=ddp"
            )
        super().__init__(joined(groups, lr, weight_decay), lr=lr, beta2_decay=-beta2_decay, d=clip)

    def kept(self, shape: torch.Size, group: Group) -> int:
        if len(shape) < 2:
            return shape.numel()
        return shape.numel() // shape[-1] + shape.numel() // shape[-2]


@register("optim", "muon")
class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal, for the matrices within the blocks (Muon, Jordan 2024); AdamW for all else.

    An orthogonal step is scaled by .2·√max(rows, columns), to the size of AdamW's (Liu 2025), so that one rate and one decay
    serve both. Projections that share a matrix are each made orthogonal by themselves. torch.optim.Muon does the same in
    bfloat16 only, which most CPUs have no fast product for. Of a matrix in shards each process works out the whole step.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        lr: Annotated[float, Ge(0)] = 2e-3,
        weight_decay: Annotated[float, Ge(0)] = 0.1,
        momentum: Annotated[float, Ge(0), Lt(1)] = 0.95,
        iterations: Annotated[int, Ge(1)] = 5,
        beta1: Annotated[float, Ge(0), Lt(1)] = 0.9,
        beta2: Annotated[float, Ge(0), Lt(1)] = 0.95,
        eps: Annotated[float, Ge(0)] = 1e-8,
    ) -> None:
        refuse_factors("muon", groups)
        self.momentum, self.iterations = momentum, iterations
        others = [group for group in groups if not group["hidden"]]
        self.adamw = AdamW(
            others, lr=lr, weight_decay=weight_decay, beta1=beta1, beta2=beta2, eps=eps
        )
        hidden = joined(
            [group for group in groups if group["hidden"]], lr, weight_decay, "hidden", "rows"
        )
        super().__init__([*self.adamw.param_groups, *hidden], {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _called(closure)
        self.adamw.state = self.state  # loading replaces both, and this one is what is saved
        self.adamw.param_groups = [group for group in self.param_groups if not group.get("hidden")]
        self.adamw.step()
        for group in self.param_groups:
            if group.get("hidden"):
                self._orthogonal_step(group)
        return loss

    def _orthogonal_step(self, group: Group) -> None:
        weights, gradients, momenta = _with_gradients(self, group)
        for weight, gradient, momentum in zip(weights, gradients, momenta, strict=True):
            momentum.lerp_(gradient, 1 - self.momentum)
            step = _whole(gradient.lerp(momentum, self.momentum))  # Nesterov's
            pieces = step.split(list(group["rows"]) or [len(step)])
            move = torch.cat(
                [
                    0.2 * max(piece.shape) ** 0.5 * orthogonal(piece, self.iterations)
                    for piece in pieces
                ]
            )
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.sub_(_cut_as(weight, move.to(weight.dtype)), alpha=group["lr"])

    def kept(self, shape: torch.Size, group: Group) -> int:
        return shape.numel() * (1 if group["hidden"] else 2)


@register("optim", "schedule_free")
class ScheduleFree(AdamWScheduleFreeReference):
    """AdamW whose rate need not fall, since the mean of its weights does as well (Schedule-Free, Defazio 2024).

    It is for schedule=constant. The model learns between the newest weights and their mean, and is evaluated and saved as
    the mean. This is the authors' form that keeps all three, so that training goes on from a mean to the bit: four numbers
    a parameter, twice AdamW's.
    """

    schedule = "constant"  # what it is made for
    progress = (
        "k",
        "train_mode",
        "weight_sum",
        "lr_max",
        "scheduled_lr",
    )  # in its groups, and no options

    def __init__(
        self,
        groups: list[Group],
        *,
        lr: Annotated[float, Ge(0)] = 5e-3,
        weight_decay: Annotated[float, Ge(0)] = 0.1,
        beta1: Annotated[float, Ge(0), Lt(1)] = 0.9,
        beta2: Annotated[float, Ge(0), Lt(1)] = 0.95,
        eps: Annotated[float, Ge(0)] = 1e-8,
    ) -> None:
        super().__init__(joined(groups, lr, weight_decay), lr=lr, betas=(beta1, beta2), eps=eps)
        self.train()

    def train(self) -> None:
        """Put back the weights that are learned at."""
        with contextlib.redirect_stdout(None):  # it says so each time
            super().train()

    def eval(self) -> None:
        """Put the mean into the model."""
        with contextlib.redirect_stdout(None):
            super().eval()

    def kept(self, shape: torch.Size, group: Group) -> int:
        return 4 * shape.numel()


def orthogonal(matrix: Tensor, iterations: int) -> Tensor:
    """U·f(S)·Vᵀ of a matrix U·S·Vᵀ, with f(S) near 1, by a Newton-Schulz iteration: in bfloat16 on a GPU, else as it is."""
    a, b, c = NEWTON_SCHULZ
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    x = x.mT if x.shape[0] > x.shape[1] else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if matrix.shape[0] > matrix.shape[1] else x


def _in_shards(tensor: Tensor) -> bool:
    """Whether each process holds some rows of it (zoo.training.fsdp), which is asked without an import that takes long."""
    return hasattr(tensor, "full_tensor")


def _whole(tensor: Any) -> Tensor:
    return cast(Tensor, tensor.full_tensor()) if _in_shards(tensor) else tensor


def _cut_as(like: Any, tensor: Tensor) -> Tensor:
    """What every process holds, cut as another tensor is."""
    if not _in_shards(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def _called(closure: Callable[[], Any] | None) -> Any:
    with torch.enable_grad():
        return None if closure is None else closure()


def _with_gradients(
    optimizer: torch.optim.Optimizer, group: Group
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The weights of a group that have a gradient, the gradients, and the momenta, which start at zero."""
    weights = [weight for weight in group["params"] if weight.grad is not None]
    for weight in weights:
        if "momentum" not in optimizer.state[weight]:
            optimizer.state[weight]["momentum"] = torch.zeros_like(
                weight, memory_format=torch.preserve_format
            )
    momenta = [optimizer.state[weight]["momentum"] for weight in weights]
    return weights, [cast(Tensor, weight.grad) for weight in weights], momenta
