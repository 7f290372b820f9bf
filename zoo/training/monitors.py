"""How training is, block by block, and what to do about a step that would spoil it. Both are off unless asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import lightning
import torch
from torch import Tensor

from zoo.cost import gpus
from zoo.models.roles import roles
from zoo.training import divergence
from zoo.training.callbacks import Watch
from zoo.utils import system


class TrainingMonitor(lightning.Callback):
    """Every `every` steps, of each block: the gradient's norm before clipping, the root mean squares of weights and updates.

    An update of about a thousandth of its weight is usual. With them the peak of the memory in bytes, and the share of the
    device's peak FLOP/s that was used since the last such row (MFU, Chowdhery 2022), where the device is known. A step that is
    watched needs room for a copy of the weights.
    """

    def __init__(self, every: int, watch: Any, flops_per_token: float) -> None:
        self.every, self.watch, self.flops_per_token = every, watch, flops_per_token
        self.before: list[Tensor] = []

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        if (trainer.global_step + 1) % self.every == 0:
            self.parts = [
                role.block or name.partition(".")[0] for name, role in roles(module.model).items()
            ]
            parameters = list(module.model.parameters())
            self.gradients = _squares(parameter.grad for parameter in parameters)
            self.before = [parameter.detach().clone() for parameter in parameters]

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        if (
            not self.before
            or trainer.global_step % self.every
            or trainer.fit_loop._should_accumulate()
        ):
            return
        after = [parameter.detach() for parameter in module.model.parameters()]
        updates = _squares(new - old for new, old in zip(after, self.before, strict=True))
        # the gradient was seen before the learner divided it by the number of tokens
        found = torch.stack(
            [self.gradients * module.gradient_scale.double() ** 2, _squares(after), updates]
        ).tolist()
        self.before = []
        row: dict[str, float] = {}
        for part in dict.fromkeys(self.parts):
            members = [which for which, other in enumerate(self.parts) if other == part]
            gradient, weight, update = (
                sum(squares[which] for which in members) for squares in found
            )
            size = sum(after[which].numel() for which in members)
            row |= {
                f"weight/{part}": (weight / size) ** 0.5,
                f"update/{part}": (update / size) ** 0.5,
            }
            if (
                math.isfinite(gradient) or update
            ):  # else a loss scaler found that it overflows, and skipped the step
                row[f"gradient/{part}"] = gradient**0.5
        row["train/memory_bytes"] = float(peak_memory())
        share = mfu(self.watch.row.get("train/tokens_per_second"), self.flops_per_token, trainer)
        if share is not None:
            row["train/mfu"] = share
        divergence.refuse_metrics(module, row, trainer.global_step)
        for logger in trainer.loggers:
            logger.log_metrics(row, trainer.global_step)


def _squares(tensors: Iterable[Tensor | None]) -> Tensor:
    """The squared norm of each, as one tensor; 0 of what has no gradient. Of a tensor in shards, that of the whole."""
    sums: list[Any] = [
        torch.zeros(()) if tensor is None else torch.linalg.vector_norm(tensor.float())
        for tensor in tensors
    ]
    whole = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in sums]
    device = next((norm.device for norm in whole if norm.is_cuda), None)
    return torch.stack([norm.to(device) for norm in whole]).double().square()


def peak_memory() -> int:
    """Bytes: of the GPU where one was used, else of the process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    return system.peak_memory()


def mfu(tokens_per_second: float | None, flops_per_token: float, trainer: Any) -> float | None:
    """The share of the devices' peak that is used; None where the device is not in zoo.cost.gpus."""
    device = (
        gpus.found(torch.cuda.get_device_name())
        if trainer.strategy.root_device.type == "cuda"
        else None
    )
    if device is None or not tokens_per_second:
        return None
    return (
        tokens_per_second
        * flops_per_token
        / (device.peak(str(trainer.precision)) * trainer.world_size)
    )


class Spikes(lightning.Callback):
    """Skips a step whose loss is more than `deviations` above the mean of those before it (as PaLM skipped batches, 2022).

    Mean and deviation are exponential, over some 100 steps, and know 20 before any is skipped. A loss that is skipped counts as
    the most that would not have been, so that one that stays high is accepted in the end.
    """

    known, over = 20, 100

    def __init__(self, deviations: float) -> None:
        self.deviations = deviations
        self.seen = self.skipped = 0
        self.mean = self.variance = 0.0

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        loss, tokens = trainer.strategy.reduce(module.step_sums.clone(), reduce_op="sum").tolist()
        if tokens and self.is_spike(loss / tokens):
            for parameter in module.model.parameters():
                parameter.grad = None  # with which an optimiser leaves weight and state as they are
            for logger in trainer.loggers:
                logger.log_metrics({"train/skipped": self.skipped}, trainer.global_step + 1)

    def is_spike(self, loss: float) -> bool:
        """Whether to skip this loss, which is remembered either way."""
        most = (
            self.mean + self.deviations * math.sqrt(self.variance)
            if self.seen >= self.known
            else math.inf
        )
        spike = loss > most
        self.seen, self.skipped = self.seen + 1, self.skipped + spike
        rate = max(1 / self.seen, 1 / self.over)
        away = min(loss, most) - self.mean
        self.mean += rate * away
        self.variance = (1 - rate) * (self.variance + rate * away**2)
        return spike

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("seen", "skipped", "mean", "variance")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def configured(
    settings: Mapping[str, Any], watch: Watch, flops_per_token: float
) -> list[lightning.Callback]:
    """The callbacks of this module that `trainer` switches on."""
    callbacks: list[lightning.Callback] = []
    if settings["spike"] is not None:
        callbacks.append(Spikes(settings["spike"]))
    if settings["watch_every"] is not None:
        callbacks.append(TrainingMonitor(settings["watch_every"], watch, flops_per_token))
    return callbacks


def skipped_steps(trainer: lightning.Trainer) -> int:
    """How many steps were skipped for a spike of the loss."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return sum(spikes.skipped for spikes in callbacks if isinstance(spikes, Spikes))
