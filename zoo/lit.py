"""LightningModules: a model, its objective, its optimiser. One base; a family adds what it is used for."""

from __future__ import annotations

import math
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torchmetrics import SumMetric

from zoo import decoding, optim
from zoo.registry import build

Batch = dict[str, Tensor]


class Learner(lightning.LightningModule):
    """Trains a model by the configuration's objective, optimiser and schedule; every token weighs the same.

    A token's weight depends neither on the micro-batch nor on the rank it fell into: the losses are summed, and before each
    optimiser step the gradient is divided by the number of labelled tokens that made it.
    """

    def __init__(self, config: dict[str, Any], model: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.config, self.model, self.tokenizer = config, model, tokenizer
        self.objective = build("objective", config["objective"])
        self.register_buffer("byte_lengths", torch.as_tensor(tokenizer.byte_lengths()), persistent=False)
        self.register_buffer("window_tokens", torch.zeros(()), persistent=False)
        self.register_buffer("shown", torch.zeros(2), persistent=False)  # loss and tokens since the last row of metrics
        self.sums = nn.ModuleDict({name: SumMetric().set_dtype(torch.double) for name in ("nats", "tokens", "bytes")})

    def training_step(self, batch: Batch, index: int) -> Tensor:
        loss, tokens = self.objective(self.model, batch)
        self.window_tokens += tokens
        self.shown += torch.stack([loss.detach(), tokens])
        return loss / self._nominal_tokens()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Turn the gradient of the sum into that of the mean over all tokens of the step, on all ranks."""
        world = self.trainer.world_size
        tokens = self.window_tokens if world == 1 else self.trainer.strategy.reduce(self.window_tokens, reduce_op="sum")
        scale = self._nominal_tokens() * self.trainer.accumulate_grad_batches * world / tokens
        if scale.is_cuda or scale != 1:  # asking a GPU would wait for it
            torch._foreach_mul_([p.grad for p in self.model.parameters() if p.grad is not None], scale)
        self.window_tokens.zero_()

    def _nominal_tokens(self) -> int:
        """Tokens of a full micro-batch: Lightning and DDP divide by constants, so the sum is kept near a mean."""
        loader, trainer = self.config["loader"], self.trainer
        return max(1, loader["batch_size"] * loader["length"] // (trainer.accumulate_grad_batches * trainer.world_size))

    def validation_step(self, batch: Batch, index: int) -> None:
        nats, tokens = self.objective(self.model, batch)
        labels = batch["labels"]
        self.sums["nats"].update(nats)
        self.sums["tokens"].update(tokens)
        self.sums["bytes"].update(self.byte_lengths[labels[labels >= 0]].sum())

    def on_validation_epoch_end(self) -> None:
        nats, tokens, size = (self.sums[name].compute().item() for name in ("nats", "tokens", "bytes"))
        for metric in self.sums.values():
            metric.reset()
        loss = nats / max(tokens, 1)
        self.log("val/loss", torch.tensor(loss, dtype=torch.float64), rank_zero_only=True)
        self.log("val/perplexity", torch.tensor(math.exp(min(loss, 700)), dtype=torch.float64), rank_zero_only=True)
        self.log("val/bits_per_byte", torch.tensor(nats / math.log(2) / max(size, 1), dtype=torch.float64), rank_zero_only=True)

    def configure_optimizers(self) -> Any:
        optimizer = build("optim", self.config["optim"], optim.parameter_groups(self.model))
        schedule = build("schedule", self.config["schedule"], self.config["trainer"]["max_steps"])
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint tells by itself what it is of: its configuration and tokenizer travel with the weights."""
        checkpoint["zoo"] = {"config": self.config, "tokenizer": self.tokenizer.dumps()}


class GPT(Learner):
    """A decoder trained on the next token, used to generate."""

    def generate(self, prompt: str = "", *, tokens: int = 200, temperature: float = 0.8, top_k: int | None = 50,
                 seed: int = 0) -> str:  # fmt: skip
        """The continuation of a text; the same seed gives the same text."""
        return decoding.continue_text(self.model, self.tokenizer, prompt, tokens, temperature, top_k, seed)
