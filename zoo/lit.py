"""LightningModules: a model, its objective, its optimiser. One base; a family adds what it is used for."""

from __future__ import annotations

import math
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torchmetrics import SumMetric

from zoo import decoding, optim
from zoo.context import Trace
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
        self.byte_lengths = torch.as_tensor(tokenizer.byte_lengths())
        self.nats, self.labelled, self.bytes = (SumMetric().set_dtype(torch.double) for _ in range(3))

    def on_fit_start(self) -> None:
        # not buffers: DDP would overwrite them with those of the first rank
        self.window_tokens = torch.zeros((), device=self.device)
        self.shown = torch.zeros(2, device=self.device)  # loss and tokens since the last row of metrics
        self.loads: dict[Any, Tensor] = {}  # of the routers that balance without a loss, in this step

    def training_step(self, batch: Batch, index: int) -> Tensor:
        trace = Trace()
        loss, tokens = self.objective(self.model, batch, trace)
        self.window_tokens += tokens
        self.shown += torch.stack([loss.detach(), tokens])
        for router, loads in trace.loads:
            self.loads[router] = self.loads.get(router, 0) + loads
        return sum(trace.losses, loss) / self._nominal_tokens()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Turn the gradient of the sum into that of the mean over all tokens of the step, on all ranks."""
        world = self.trainer.world_size
        tokens = self.window_tokens if world == 1 else self.trainer.strategy.reduce(self.window_tokens.clone(), reduce_op="sum")
        scale = self._nominal_tokens() * self.trainer.accumulate_grad_batches * world / tokens
        if scale.is_cuda or scale != 1:  # asking a GPU would wait for it
            torch._foreach_mul_([p.grad for p in self.model.parameters() if p.grad is not None], scale)
        self.window_tokens.zero_()
        self._rebalance()

    def _rebalance(self) -> None:
        """Let each router know what all micro-batches and ranks of this step gave to its experts."""
        if self.loads:
            loads = self.trainer.strategy.reduce(torch.cat(list(self.loads.values())), reduce_op="sum")
            for router, own in zip(self.loads, loads.split([len(own) for own in self.loads.values()]), strict=True):
                router.rebalance(own)
            self.loads.clear()

    def _nominal_tokens(self) -> int:
        """Tokens of a full micro-batch: Lightning and DDP divide by constants, so the sum is kept near a mean."""
        loader, trainer = self.config["loader"], self.trainer
        return max(1, loader["batch_size"] * loader["length"] // (trainer.accumulate_grad_batches * trainer.world_size))

    def validation_step(self, batch: Batch, index: int) -> None:
        nats, tokens = self.objective(self.model, batch)
        labels = batch["labels"]
        self.nats.update(nats)
        self.labelled.update(tokens)
        self.bytes.update(self.byte_lengths[labels[labels >= 0].cpu()].sum().to(self.device))

    def on_validation_epoch_end(self) -> None:
        nats, tokens, size = (sums.compute().item() for sums in (self.nats, self.labelled, self.bytes))
        for sums in (self.nats, self.labelled, self.bytes):
            sums.reset()
        loss = nats / max(tokens, 1)
        measured = {
            "val/loss": loss,
            "val/perplexity": math.exp(min(loss, 700)),
            "val/bits_per_byte": nats / math.log(2) / max(size, 1),
        }
        exact = {name: torch.tensor(value, dtype=torch.float64) for name, value in measured.items()}
        self.log_dict(exact, logger=False, rank_zero_only=True)  # for checkpoints/best.ckpt
        for logger in self.trainer.loggers:
            logger.log_metrics(measured, self.trainer.global_step)

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
                 seed: int = 0) -> str:
        """The continuation of a text; the same seed gives the same text."""
        return decoding.continue_text(self.model, self.tokenizer, prompt, tokens, temperature, top_k, seed)
