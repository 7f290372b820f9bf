"""Monitors training block by block, and skips steps whose loss spikes; both are off by default."""

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
from zoo.training.callbacks import LossLogger
from zoo.training.module import LMModule
from zoo.utils import system


class TrainingMonitor(lightning.Callback):
    """Logs for each block the gradient's norm before clipping, and the RMS of weights and updates.

    An update of about a thousandth of its weight is usual. Logged with them are the peak memory in
    bytes and, where the device's peak FLOP/s are known, the share of these that was used since the
    last row (MFU, Chowdhery 2022). A monitored step needs memory for a copy of the weights.
    """

    def __init__(self, every: int, loss_logger: LossLogger, flops_per_token: float) -> None:
        self.every, self.loss_logger, self.flops_per_token = every, loss_logger, flops_per_token
        self.before: list[Tensor] = []

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        if (trainer.global_step + 1) % self.every:
            return
        self.parts = [
            role.block or name.partition(".")[0] for name, role in roles(module.model).items()
        ]
        parameters = list(module.model.parameters())
        self.gradients = _squared_norms(parameter.grad for parameter in parameters)
        self.before = [parameter.detach().clone() for parameter in parameters]

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        step = trainer.global_step
        if not self.before or step % self.every:
            return
        row = self._norms(module)
        self.before = []
        row["train/memory_bytes"] = float(peak_memory())
        speed = self.loss_logger.row.get("train/tokens_per_second")
        utilisation = mfu(speed, self.flops_per_token, trainer)
        if utilisation is not None:
            row["train/mfu"] = utilisation
        divergence.refuse_metrics(module, row, step)
        for logger in trainer.loggers:
            logger.log_metrics(row, step)

    def _norms(self, module: LMModule) -> dict[str, float]:
        after = [parameter.detach() for parameter in module.model.parameters()]
        changes = (new - old for new, old in zip(after, self.before, strict=True))
        # seen before LMModule divided the gradient by the number of tokens
        gradients = self.gradients * module.gradient_scale.double() ** 2
        squares = torch.stack([gradients, _squared_norms(after), _squared_norms(changes)]).tolist()
        row: dict[str, float] = {}
        for part in dict.fromkeys(self.parts):
            members = [index for index, other in enumerate(self.parts) if other == part]
            gradient, weight, update = (sum(kind[index] for index in members) for kind in squares)
            size = sum(after[index].numel() for index in members)
            row[f"weight/{part}"] = (weight / size) ** 0.5
            row[f"update/{part}"] = (update / size) ** 0.5
            # else a loss scaler found that the gradient overflows, and skipped the step
            if math.isfinite(gradient) or update:
                row[f"gradient/{part}"] = gradient**0.5
        return row


def _squared_norms(tensors: Iterable[Tensor | None]) -> Tensor:
    """The squared norm of each tensor, 0 for a missing one; of a sharded tensor, of the whole."""
    norms: list[Any] = [
        torch.zeros(()) if tensor is None else torch.linalg.vector_norm(tensor.float())
        for tensor in tensors
    ]
    whole = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    device = next((norm.device for norm in whole if norm.is_cuda), None)
    return torch.stack([norm.to(device) for norm in whole]).double().square()


def peak_memory() -> int:
    """Bytes: of the GPU where one was used, else of the process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    return system.peak_memory()


def mfu(
    tokens_per_second: float | None, flops_per_token: float, trainer: lightning.Trainer
) -> float | None:
    """Model FLOPs utilisation: the used share of the devices' peak; None for an unknown device."""
    if not tokens_per_second or trainer.strategy.root_device.type != "cuda":
        return None
    device = gpus.found(torch.cuda.get_device_name())
    if device is None:
        return None
    peak = device.peak(str(trainer.precision)) * trainer.world_size
    return tokens_per_second * flops_per_token / peak


class SpikeSkipper(lightning.Callback):
    """Skips a step whose loss is more than `deviations` above the mean (PaLM 2022 skipped batches).

    Mean and standard deviation are exponential over some 100 steps, of which the first 20 are
    never skipped. A skipped loss counts as the largest that would not have been, so that a loss
    that stays high is accepted in the end.
    """

    state_key = "Spikes"  # in checkpoints; the class was called so first
    first, horizon = 20, 100

    def __init__(self, deviations: float) -> None:
        self.deviations = deviations
        self.seen = self.skipped = 0
        self.mean = self.variance = 0.0

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        sums = trainer.strategy.reduce(module.step_sums.clone(), reduce_op="sum")
        loss, tokens = sums.tolist()
        if tokens and self.is_spike(loss / tokens):
            for parameter in module.model.parameters():
                parameter.grad = None  # the optimiser then leaves weight and state unchanged
            for logger in trainer.loggers:
                logger.log_metrics({"train/skipped": self.skipped}, trainer.global_step + 1)

    def is_spike(self, loss: float) -> bool:
        """Whether to skip this loss, which enters the mean either way."""
        largest = math.inf
        if self.seen >= self.first:
            largest = self.mean + self.deviations * math.sqrt(self.variance)
        spike = loss > largest
        self.seen, self.skipped = self.seen + 1, self.skipped + spike
        rate = max(1 / self.seen, 1 / self.horizon)
        distance = min(loss, largest) - self.mean
        self.mean += rate * distance
        self.variance = (1 - rate) * (self.variance + rate * distance**2)
        return spike

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("seen", "skipped", "mean", "variance")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def configured(
    settings: Mapping[str, Any], loss_logger: LossLogger, flops_per_token: float
) -> list[lightning.Callback]:
    """The callbacks of this module that `trainer` switches on."""
    callbacks: list[lightning.Callback] = []
    if settings["spike"] is not None:
        callbacks.append(SpikeSkipper(settings["spike"]))
    if settings["watch_every"] is not None:
        callbacks.append(TrainingMonitor(settings["watch_every"], loss_logger, flops_per_token))
    return callbacks


def skipped_steps(trainer: lightning.Trainer) -> int:
    """How many steps were skipped for a spike of the loss."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return sum(spikes.skipped for spikes in callbacks if isinstance(spikes, SpikeSkipper))
