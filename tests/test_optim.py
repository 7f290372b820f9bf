"""Optimisers, every one that is registered, and each against torch's own class or its paper's
formula.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.components import Choice, each, make
from zoo import config, cost, optim, registry
from zoo.conformance.training_parts import step, untied
from zoo.errors import ZooError

F64 = torch.float64


def made(choice: Choice, model: nn.Module, **options: Any) -> Any:
    return registry.build("optim", choice | options, optim.parameter_groups(model))


@each("optim")
@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_is_in_one_group_and_only_matrices_decay(optim: Choice, tied: bool) -> None:
    model = make(
        head={"name": "linear", "tied": tied, "bias": True},
        attn={"name": "mha", "bias": True},
        pos="learned",
    )
    optimizer = made(optim, model, lr=0.0, weight_decay=0.3)
    grouped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, model.parameters()))
    for group in optimizer.param_groups:
        assert all(
            group["weight_decay"] == (0.3 if parameter.ndim >= 2 else 0.0)
            for parameter in group["params"]
        )


@each("optim")
def test_decay_shrinks_matrices_and_nothing_else(optim: Choice) -> None:
    """Where the gradient is zero, a step is decay alone: w·(1 - lr·decay)."""
    model = untied()
    before = copy.deepcopy(model)
    optimizer = made(optim, model, lr=0.1, weight_decay=0.2)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for (name, old), new in zip(before.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(new, old * (0.98 if old.ndim >= 2 else 1.0), msg=name)


def another(value: float) -> float:
    """A value of an option that is so different that a few steps show it."""
    if isinstance(value, int):
        return value + 1
    return 2 * value if value >= 1 else value / 2 if value > 1e-3 else 0.1


@each("optim")
def test_every_option_changes_what_is_learned(optim: Choice) -> None:
    def learned(**options: Any) -> list[Tensor]:
        model = untied()
        optimizer = made(optim, model, **options)
        for seed in range(3):
            step(model, optimizer, seed)
        return [parameter.detach() for parameter in model.parameters()]

    defaults, plain = registry.resolve("optim", optim), learned()
    del defaults["name"]
    for option, value in defaults.items():
        same = all(map(torch.equal, learned(**{option: another(value)}), plain))
        assert not same, f"{option} changes nothing"


def test_the_memory_of_training_knows_the_optimiser() -> None:
    words = ["arch.dim=32", "arch.layers=1", "arch.length=32", "loader.batch_size=1"]
    adamw, lion = (
        cost.training_memory(config.compose([*words, f"optim={name}"]))
        for name in ("adamw", "lion")
    )
    assert adamw - lion == 4 * cost.of(config.compose(words))["parameters"]


@each("optim")
@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"weight_decay": -0.1}])
def test_a_rate_that_none_can_have_is_refused(optim: Choice, wrong: dict[str, float]) -> None:
    with pytest.raises(ZooError, match="must be at least 0"):
        made(optim, make(), **wrong)


# Each against another's arithmetic. Two steps, so that momenta count.


class Two(nn.Module):
    """A matrix within a block, a matrix outside, and a vector."""

    def __init__(self, rows: int = 6, columns: int = 4) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.embed = nn.Parameter(torch.randn(5, 3, generator=draw))
        self.blocks = nn.Module()
        self.blocks.weight = nn.Parameter(torch.randn(rows, columns, generator=draw))
        self.blocks.bias = nn.Parameter(torch.randn(7, generator=draw))

    @property
    def stacks(self) -> list[Any]:
        return [SimpleNamespace(blocks=[self.blocks])]


def gradients(model: nn.Module, seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(100 + seed)
    return [torch.randn(parameter.shape, generator=draw) for parameter in model.parameters()]


def after(model: nn.Module, optimizer: Any, steps: int = 3) -> list[Tensor]:
    for seed in range(steps):
        for parameter, gradient in zip(model.parameters(), gradients(model, seed), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def same(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-5) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.to(F64), other.to(F64), rtol=tolerance, atol=tolerance)


def test_adamw_is_the_papers() -> None:
    """Loshchilov & Hutter 2019, algorithm 2, in float64."""
    lr, decay, b1, b2, eps = 0.01, 0.1, 0.9, 0.95, 1e-8
    expected = []
    for which, parameter in enumerate(Two().parameters()):
        w, m, v = parameter.detach().to(F64), torch.zeros((), dtype=F64), torch.zeros((), dtype=F64)
        for t in range(1, 4):
            g = gradients(Two(), t - 1)[which].to(F64)
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            step = m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + eps)
            w = w - lr * (step + (decay * w if w.ndim == 2 else 0))
        expected.append(w)
    model = Two()
    same(after(model, made({"name": "adamw"}, model, lr=lr, weight_decay=decay)), expected)


def test_lion_is_the_papers() -> None:
    """Chen et al. 2023, algorithm 2, in float64."""
    lr, decay, b1, b2 = 0.01, 0.5, 0.9, 0.99
    expected = []
    for which, parameter in enumerate(Two().parameters()):
        w, m = parameter.detach().to(F64), torch.zeros((), dtype=F64)
        for t in range(3):
            g = gradients(Two(), t)[which].to(F64)
            w = w - lr * ((b1 * m + (1 - b1) * g).sign() + (decay * w if w.ndim == 2 else 0))
            m = b2 * m + (1 - b2) * g
        expected.append(w)
    model = Two()
    same(after(model, made({"name": "lion"}, model, lr=lr, weight_decay=decay)), expected)


def test_adafactor_is_the_papers() -> None:
    """Shazeer & Stern 2018, algorithms 4 and 5 with relative steps, in float64; their ε₁ is too
    small to matter here.
    """
    lr, clip = 0.02, 1.0
    expected = []
    for which, parameter in enumerate(Two().parameters()):
        w = parameter.detach().to(F64)
        rows, columns, v = (torch.zeros((), dtype=F64) for _ in range(3))
        for t in range(1, 4):
            g, b2 = gradients(Two(), t - 1)[which].to(F64), 1 - t**-0.8
            if w.ndim == 2:
                rows = b2 * rows + (1 - b2) * (g**2).sum(1)
                columns = b2 * columns + (1 - b2) * (g**2).sum(0)
                second = rows[:, None] * columns[None] / rows.sum()
            else:
                second = v = b2 * v + (1 - b2) * g**2
            update = g / second.sqrt()
            update = update / max(1, update.square().mean().sqrt().item() / clip)
            w = w - max(1e-3, w.square().mean().sqrt().item()) * min(lr, t**-0.5) * update
        expected.append(w)
    model = Two()
    same(after(model, made({"name": "adafactor"}, model, lr=lr)), expected)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_muon_is_torchs_in_blocks_and_adamw_elsewhere(shape: tuple[int, int]) -> None:
    """torch.optim.Muon, whose iteration is in bfloat16 (so to a hundredth of the whole step),
    and torch.optim.AdamW.
    """
    model, theirs, start = Two(*shape), Two(*shape), Two(*shape)
    ours = after(model, made({"name": "muon"}, model, lr=0.1, weight_decay=0.3))
    after(
        theirs,
        torch.optim.Muon(
            [theirs.blocks.weight], lr=0.1, weight_decay=0.3, adjust_lr_fn="match_rms_adamw"
        ),
    )
    expected = theirs.blocks.weight.detach()
    assert (ours[1] - expected).norm() < 0.02 * (start.blocks.weight - expected).norm()
    groups = [
        {"params": [theirs.embed], "weight_decay": 0.3},
        {"params": [theirs.blocks.bias], "weight_decay": 0.0},
    ]
    after(theirs, torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.95)))
    same([ours[0], ours[2]], [theirs.embed.detach(), theirs.blocks.bias.detach()])


def test_schedule_free_is_the_papers() -> None:
    """Defazio et al. 2024, algorithm 1 with AdamW's step, in float64: y is learned at, x is the
    mean that is used.
    """
    lr, decay, b1, b2 = 0.1, 0.3, 0.9, 0.95
    learned, used = [], []
    for which, parameter in enumerate(Two().parameters()):
        x = y = z = parameter.detach().to(F64)
        v = torch.zeros((), dtype=F64)
        for t in range(1, 4):
            g = gradients(Two(), t - 1)[which].to(F64)
            v = b2 * v + (1 - b2) * g**2
            z = (
                z
                - lr * (decay if z.ndim == 2 else 0) * y
                - lr * g / ((v / (1 - b2**t)).sqrt() + 1e-8)
            )
            x = x + (z - x) / t
            y = (1 - b1) * z + b1 * x
        learned.append(y)
        used.append(x)
    model = Two()
    optimizer = made({"name": "schedule_free"}, model, lr=lr, weight_decay=decay)
    same(after(model, optimizer), learned)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.eval()
    same([parameter.detach() for parameter in model.parameters()], used)
    optimizer.train()
    assert all(map(torch.equal, before, model.parameters())), "there and back to the bit"


@pytest.mark.parametrize("shape", [(8, 5), (5, 8)])
def test_an_orthogonal_step_keeps_the_singular_vectors(shape: tuple[int, int]) -> None:
    """The iteration is a polynomial of the singular values alone (Jordan 2024): worked out on
    those, in float64.
    """
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=F64)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    torch.testing.assert_close(optim.orthogonal(matrix, 5), u @ s.diag() @ vh)
    assert ((s > 0.6) & (s < 1.3)).all()


def test_projections_that_share_a_matrix_are_orthogonal_each() -> None:
    """As if queries, keys and values were matrices of their own."""
    model = make(attn={"name": "gqa", "kv_heads": 2})
    weight = model.stack.blocks[0].attn.sublayer.qkv.weight
    before, gradient = (
        weight.detach().clone(),
        torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)),
    )
    optimizer = made({"name": "muon"}, model, lr=0.1, weight_decay=0.0)
    weight.grad = gradient.clone()
    optimizer.step()
    for moved, part in zip(
        (before - weight.detach()).split([16, 8, 8]), gradient.split([16, 8, 8]), strict=True
    ):
        step = optim.orthogonal(
            part, 5
        )  # whatever the momentum, the first step has the gradient's direction
        torch.testing.assert_close(moved, 0.1 * 0.2 * 4 * step, rtol=1e-3, atol=1e-5)
