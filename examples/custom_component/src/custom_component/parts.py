"""A norm, a callback and a logger of one's own, each declared where it is written."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from zoo.registry import register


@register("norm", "power")
class PowerNorm(nn.Module):
    """Power norm: x / (mean(|x|^p) + eps)^(1/p) * gain. Shapes: (..., dim) -> (..., dim)."""

    def __init__(self, dim: int, *, p: float = 1.5, eps: float = 1e-6) -> None:
        super().__init__()
        self.p, self.eps = p, eps
        self.weight = nn.Parameter(torch.ones(dim))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.abs().pow(self.p).mean(-1, keepdim=True)
        return x * (mean + self.eps).pow(-1 / self.p) * self.weight


@register("callback", "step_printer")
class StepPrinter(lightning.Callback):
    """Print a line every so many steps."""

    def __init__(self, *, every: int = 2) -> None:
        self.every = every

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.global_step % self.every == 0:
            print(f"custom_component saw step {trainer.global_step}")


@register("logger", "second_csv")
def second_csv(folder: str, *, name: str = "second") -> CSVLogger:
    """Write metrics once more, in Lightning's own format."""
    return CSVLogger(folder, name=name)
