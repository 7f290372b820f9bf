"""The arithmetic of a training step: what a token weighs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor, nn

from zoo import config
from zoo.training import module as lightning_module


class Level(nn.Module):
    """One number; its loss on a batch is that number times the batch's, so the gradient is the
    mean of the batches' numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.ones(()))


class Given:
    """An objective whose loss a token stands in the batch."""

    extra, labelled_fraction = 0, 1.0

    def __call__(
        self, model: Any, batch: dict[str, Tensor], trace: Any = None
    ) -> tuple[Tensor, Tensor]:
        losses = batch["losses"]
        return model.level * losses.sum(), torch.tensor(losses.numel())

    def evaluate(self, model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        return batch["losses"], batch["right"], batch["labels"]


class Partly(Given):
    """Half of the tokens that are read are labelled, and each that is read has an auxiliary loss
    of 3.
    """

    labelled_fraction = 0.5

    def __call__(
        self, model: Any, batch: dict[str, Tensor], trace: Any = None
    ) -> tuple[Tensor, Tensor]:
        trace.losses.append(model.level * 3.0 * 2 * batch["losses"].numel())
        return super().__call__(model, batch, trace)


class Tokens:
    vocab, eot = 3, 0

    def byte_lengths(self) -> list[int]:
        return [1, 3, 5]


def gradients(
    batches: list[list[float]],
    accumulate: int,
    monkeypatch: pytest.MonkeyPatch,
    objective: type[Given] = Given,
) -> list[float]:
    """The gradient at each optimiser step of one epoch over micro-batches of these losses a
    token.
    """
    seen: list[float] = []
    made = config.compose(["loader.batch_size=4", "loader.length=8", "optim.weight_decay=0"])
    module = lightning_module.LMModule(made, Level(), Tokens())
    module.objective = objective()
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


def test_an_auxiliary_loss_is_the_mean_over_all_that_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert gradients([[4.0], [2.0, 2.0, 2.0]], 2, monkeypatch, Partly) == pytest.approx([2.5 + 3])


class Router:
    """A router that keeps the loads by which it was rebalanced."""

    def rebalance(self, loads: Tensor) -> None:
        self.seen = loads.tolist()


class OtherRank:
    """A strategy of two ranks, the other of which gave these loads to its experts, router after
    router.
    """

    def __init__(self, *loads: float) -> None:
        self.loads = torch.tensor(loads)

    def reduce(self, tensor: Tensor, reduce_op: str) -> Tensor:
        total = tensor + self.loads
        return total if reduce_op == "sum" else total / 2


def test_routers_are_rebalanced_by_the_loads_of_all_ranks() -> None:
    module: Any = lightning_module.LMModule(config.compose(["loader.length=8"]), Level(), Tokens())
    module.trainer = SimpleNamespace(strategy=OtherRank(10.0, 20.0, 30.0, 40.0, 50.0))
    first, second = Router(), Router()
    module.loads = {first: torch.tensor([1.0, 2.0]), second: torch.tensor([3.0, 4.0, 5.0])}
    module._rebalance()
    assert first.seen == [11.0, 22.0]
    assert second.seen == [33.0, 44.0, 55.0]
    assert not module.loads


def test_an_evaluation_weighs_every_label_alike() -> None:
    """Over batches of unequal size: nats and hits per label, bits per byte of their text; a
    place without one is none.
    """
    made = config.compose(["loader.batch_size=4", "loader.length=8"])
    module = lightning_module.LMModule(made, Level(), Tokens())
    module.objective = Given()
    batches: list[Any] = [
        {
            "losses": torch.tensor([2.0, 4.0, 0.0]),
            "right": torch.tensor([True, False, False]),
            "labels": torch.tensor([1, 2, -100]),
        },
        {"losses": torch.tensor([6.0]), "right": torch.tensor([True]), "labels": torch.tensor([1])},
    ]
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.validate(module, torch.utils.data.DataLoader(batches, batch_size=None), verbose=False)
    measured = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert measured == pytest.approx(
        {
            "val/loss": 12 / 3,
            "val/perplexity": math.exp(4),
            "val/bits_per_byte": 12 / math.log(2) / (3 + 5 + 3),
            "val/accuracy": 2 / 3,
        },
        rel=1e-6,
    )
