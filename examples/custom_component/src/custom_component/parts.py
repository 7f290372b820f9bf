"""A norm, a callback, a metric and a logger of one's own, each declared where it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from zoo.metrics import Metric
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


@register("callback", "gain_watch")
class GainWatch(lightning.Callback):
    """Log how far the gains of all norms are apart, as val/gain_spread, with each evaluation."""

    def __init__(self, *, show: bool = False) -> None:
        self.show = show

    def on_validation_epoch_end(self, trainer: lightning.Trainer, module: Any) -> None:
        gains = [norm.weight for norm in module.modules() if isinstance(norm, PowerNorm)]
        spread = torch.cat(gains).std() if gains else torch.zeros(())
        module.log("val/gain_spread", spread)
        if self.show:
            print(f"gain spread {spread:.4f} at step {trainer.global_step}")


@register("metric", "val/gain_spread", "Standard deviation of the gains of all norms.")
def gain_spread() -> Metric:
    """The metric that gain_watch logs, so that a study can be judged by it."""
    return Metric("val/gain_spread", "units of gain", "lower", diverged=1.0)


@register("logger", "second_csv")
def second_csv(
    config: dict[str, Any], folder: Path, summary: dict[str, Any], *, subfolder: str = "second"
) -> CSVLogger:
    """Write metrics once more, in Lightning's own format, into the run's folder."""
    return CSVLogger(folder, name=subfolder)
