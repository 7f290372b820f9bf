"""Trains and evaluates a model by its objective, optimiser and schedule, as a LightningModule."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import SumMetric

from zoo import objectives, optim
from zoo.checkpoints import reading
from zoo.config import Config
from zoo.context import Trace
from zoo.data.eval_breakdown import EvalBreakdown
from zoo.errors import ZooError
from zoo.registry import build
from zoo.training import divergence, fsdp
from zoo.utils import compat

Batch = dict[str, Tensor]
SUMS = ("nats", "right", "tokens", "bytes")  # of an evaluation


class LMModule(lightning.LightningModule):
    """A model in training, in which every token weighs the same.

    A token's weight depends neither on the micro-batch nor on the rank it falls into: losses are
    summed, and before each optimiser step the gradient is divided by the number of labelled tokens.
    """

    def __init__(self, config: Config, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.config, self.model, self.tokenizer = config, model, tokenizer
        self.objective = build(
            "objective", config["objective"], tokenizer, config["loader"]["length"]
        )
        self.byte_lengths = F.pad(
            torch.as_tensor(tokenizer.byte_lengths()), (0, self.objective.extra)
        )
        # in a dict, as a submodule would be cast to bfloat16 with the model
        self.sums: dict[str, SumMetric] = {name: _exact_sum() for name in SUMS}
        self.breakdown: EvalBreakdown | None = None  # of the last evaluation of a whole text
        self.row_sums = torch.zeros(2)  # loss and tokens since the last row of metrics
        self.step_sums = torch.zeros(2)  # loss and tokens of this step
        self.loads: dict[nn.Module, Tensor] = {}  # per router, the tokens of its experts this step
        self.gradient_scale = torch.ones(())

    def configure_model(self) -> None:
        """Shard and fill a model that is still on the meta device, where the strategy shards it."""
        strategy = self.trainer.strategy
        if isinstance(strategy, fsdp.Sharded) and next(self.model.parameters()).is_meta:
            fsdp.shard(self.model, strategy, self.config["seed"])

    def on_fit_start(self) -> None:
        # not buffers: DDP would overwrite them with those of rank 0
        self.step_sums = torch.zeros(2, device=self.device)
        self.row_sums = self.row_sums.to(self.device)
        self.loads = {}

    def on_train_start(self) -> None:
        self._apply_options()
        self._use_evaluation_weights(False)

    def _apply_options(self) -> None:
        """Give the optimiser the options of now, as its restored state has those of before.

        They differ where `changing` names some; the next learning rate depends on max_steps, too.
        """
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        schedule: Any = self.lr_schedulers()
        fresh = self._build_optimizer()
        not_options = ("params", *getattr(fresh, "progress", ()))
        schedule.base_lrs = [group["lr"] for group in fresh.param_groups]
        groups = zip(optimizer.param_groups, fresh.param_groups, schedule.lr_lambdas, strict=True)
        for group, new, factor in groups:
            group.update({name: new[name] for name in new if name not in not_options})
            group.update(initial_lr=new["lr"], lr=new["lr"] * factor(schedule.last_epoch))

    def on_train_end(self) -> None:
        self._use_evaluation_weights(True)

    def on_validation_start(self) -> None:
        self._use_evaluation_weights(True)

    def on_validation_end(self) -> None:
        self._use_evaluation_weights(self.trainer.state.fn != "fit")

    @contextlib.contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        """Temporarily swap in the evaluation (averaged) weights."""
        self._use_evaluation_weights(True)
        yield
        self._use_evaluation_weights(False)

    def _use_evaluation_weights(self, averaged: bool) -> None:
        """Let an optimiser that averages weights give the model the average, or those it trains."""
        optimizer: Any
        for optimizer in self.trainer.optimizers:
            if hasattr(optimizer, "eval"):
                (optimizer.eval if averaged else optimizer.train)()

    def training_step(self, batch: Batch, index: int) -> Tensor:
        trace = Trace()
        loss, tokens = self.objective(self.model, batch, trace)
        sums = torch.stack([loss.detach(), tokens])
        self.step_sums += sums
        self.row_sums += sums
        for router, loads in trace.loads:
            self.loads[router] = self.loads.get(router, 0) + loads
        for auxiliary in trace.losses:
            loss = loss + self.objective.labelled_fraction * auxiliary
        return loss / self._nominal_tokens()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Turn the gradient of the sum into that of the mean over the tokens of all ranks."""
        world, tokens = self.trainer.world_size, self.step_sums[1]
        if world > 1:
            tokens = self.trainer.strategy.reduce(tokens.clone(), reduce_op="sum")
        nominal = self._nominal_tokens() * self.trainer.accumulate_grad_batches * world
        scale = nominal / tokens.clamp(min=1)
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        gradients = [fsdp.local(p.grad) for p in parameters if p.grad is not None]
        if gradients and (scale.is_cuda or scale != 1):  # comparing would wait for the GPU
            compat.foreach("mul_")(gradients, scale)
        self.gradient_scale = scale
        self.step_sums.zero_()
        self._rebalance()

    def _rebalance(self) -> None:
        """Tell each router how many tokens its experts had, over micro-batches and ranks."""
        if not self.loads:
            return
        sizes = [len(loads) for loads in self.loads.values()]
        total = self.trainer.strategy.reduce(torch.cat(list(self.loads.values())), reduce_op="sum")
        router: Any
        for router, loads in zip(self.loads, total.split(sizes), strict=True):
            router.rebalance(loads)
        self.loads.clear()

    def _nominal_tokens(self) -> int:
        """Tokens of a full micro-batch, by which the sum is divided to keep it near a mean.

        A constant, as Lightning and DDP average over micro-batches and ranks by constants, too.
        """
        loader, trainer = self.config["loader"], self.trainer
        parts = trainer.accumulate_grad_batches * trainer.world_size
        return max(1, loader["batch_size"] * loader["length"] // parts)

    def on_validation_epoch_start(self) -> None:
        for sums in self.sums.values():
            sums.to(self.device)
        data: Any = getattr(self.trainer, "datamodule", None)
        whole_text = data is not None and self.objective.loss_scope is None
        self.breakdown = data.breakdown("val") if whole_text else None

    def validation_step(self, batch: Batch, index: int) -> None:
        nats, right, labels = self.objective.evaluate(self.model, batch)
        real = labels[labels >= 0]
        self.sums["nats"].update(nats.double().sum())
        self.sums["right"].update(right.sum())
        self.sums["tokens"].update(len(real))
        self.sums["bytes"].update(self.byte_lengths[real.cpu()].sum().to(self.device))
        if self.breakdown is not None:
            self.breakdown.add(batch["indices"], nats.view_as(batch["labels"]), batch["labels"])

    def on_validation_epoch_end(self) -> None:
        nats, right, tokens, size = (self.sums[name].compute() for name in SUMS)
        for sums in self.sums.values():
            sums.reset()
        if not tokens:
            raise ZooError(
                "the evaluation has no token to measure: give more text to validate on, or mask"
                " more of it"
            )
        self._reduce_breakdown()
        loss = nats / tokens
        values = (loss, loss.exp(), nats / math.log(2) / size, right / tokens)
        exact = dict(zip(objectives.EVAL_METRICS, values, strict=True))
        if not size:  # no label stands for a part of the text
            del exact["val/bits_per_byte"]
        measured = {name: value.item() for name, value in exact.items()}
        divergence.refuse_metrics(self, measured, self.trainer.global_step)
        self.log_dict(exact, logger=False, rank_zero_only=True)  # for checkpoints/best.ckpt
        for logger in self.trainer.loggers:
            logger.log_metrics(measured, self.trainer.global_step)

    def _reduce_breakdown(self) -> None:
        """Sum the losses by document and by position over all ranks."""
        if self.breakdown is None or self.trainer.world_size == 1:
            return
        for table in (self.breakdown.by_document, self.breakdown.by_position):
            table.copy_(self.trainer.strategy.reduce(table.to(self.device), reduce_op="sum"))

    def configure_optimizers(self) -> Any:
        optimizer = self._build_optimizer()
        needed, chosen = getattr(optimizer, "schedule", None), self.config["schedule"]["name"]
        if needed not in (None, chosen):
            raise ZooError(
                f"optim={self.config['optim']['name']} is made for schedule={needed}, not {chosen}:"
                " give that one"
            )
        schedule = build("schedule", self.config["schedule"], self.config["trainer"]["max_steps"])
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def _build_optimizer(self) -> torch.optim.Optimizer:
        groups = optim.parameter_groups(self.model, self.config["init"])
        optimizer: torch.optim.Optimizer = build("optim", self.config["optim"], groups)
        return optimizer

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the configuration and the tokenizer with the weights.

        Raises Diverged where a number is not finite, so that the checkpoint before is kept.
        """
        if self.global_step:
            divergence.refuse_weights(self, checkpoint)
        checkpoint["zoo"] = {
            "format": reading.FORMAT,
            "config": self.config,
            "tokenizer": self.tokenizer.dumps(),
        }


def _exact_sum() -> SumMetric:
    """A sum in float64, of which no NaN is dropped."""
    metric: Any = SumMetric(nan_strategy="disable").set_dtype(torch.double)
    return metric
