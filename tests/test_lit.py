"""The arithmetic of a training step: what a token weighs, and which parameters decay."""

from __future__ import annotations

from typing import Any

import lightning
import pytest
import torch
from torch import Tensor, nn

from zoo import config, lit, models, optim, registry


class Level(nn.Module):
    """One number; its loss on a batch is that number times the batch's, so the gradient is the mean of the batches' numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.ones(()))


class Given:
    """An objective whose loss a token stands in the batch."""

    extra, share = 0, 1.0

    def __call__(self, model: Any, batch: dict[str, Tensor], trace: Any = None) -> tuple[Tensor, Tensor]:
        losses = batch["losses"]
        return model.level * losses.sum(), torch.tensor(losses.numel())


class Tokens:
    vocab, eot = 1, 0

    def byte_lengths(self) -> list[int]:
        return [1]


def gradients(batches: list[list[float]], accumulate: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The gradient at each optimiser step of one epoch over micro-batches of these losses a token."""
    seen: list[float] = []
    made = config.compose(["loader.batch_size=4", "loader.length=8", "optim.weight_decay=0"])
    module = lit.Learner(made, Level(), Tokens())
    module.objective = Given()
    monkeypatch.setattr(
        optim, "parameter_groups", lambda model: [{"params": list(model.parameters()), "decays": False}]
    )
    before = module.on_before_optimizer_step

    def record(optimizer: torch.optim.Optimizer) -> None:
        before(optimizer)
        seen.append(module.model.level.grad.item())

    monkeypatch.setattr(module, "on_before_optimizer_step", record)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = [{"losses": torch.tensor(losses)} for losses in batches]
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=None))
    return seen


def test_accumulated_micro_batches_weigh_by_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    # means 4 and 2 over 1 and 3 tokens: (4 + 3 * 2) / 4, not their mean 3
    assert gradients([[4.0], [2.0, 2.0, 2.0]], 2, monkeypatch) == pytest.approx([2.5])


def test_a_partial_last_window_is_not_scaled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gradients([[4.0], [2.0, 2.0, 2.0], [7.0]], 2, monkeypatch) == pytest.approx([2.5, 7.0])


def test_every_parameter_is_in_one_group_and_only_matrices_decay() -> None:
    made = config.compose(
        ["model=gpt2", "arch.dim=16", "arch.layers=2", "arch.heads=2", "arch.vocab=32", "head.tied=false"]
    )
    model = models.build(made)
    optimizer = registry.build("optim", {"name": "adamw", "weight_decay": 0.3}, optim.parameter_groups(model))
    grouped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, model.parameters()))
    for group in optimizer.param_groups:
        assert all(group["weight_decay"] == (0.3 if parameter.ndim >= 2 else 0.0) for parameter in group["params"])


@pytest.mark.parametrize("name", list(registry.entries("schedule")))
def test_warm_up_starts_above_zero_and_reaches_the_full_rate(name: str) -> None:
    factor = registry.build("schedule", {"name": name, "warmup": 10}, 100)
    warm = [factor(step) for step in range(11)]
    assert 0 < warm[0] < 0.2
    assert warm == sorted(warm)
    assert warm[10] == pytest.approx(1.0)
    assert all(0 < factor(step) <= 1 for step in range(200))


def test_the_cosine_ends_where_it_is_told() -> None:
    factor = registry.build("schedule", {"name": "cosine", "warmup": 0, "final": 0.25}, 100)
    assert factor(0) == pytest.approx(1.0)
    assert factor(50) == pytest.approx((1 + 0.25) / 2)
    assert factor(100) == factor(1000) == pytest.approx(0.25)
