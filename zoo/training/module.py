"""LightningModules: a model, its objective, its optimiser. One base; a family adds what it is used for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import lightning
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import SumMetric

from zoo import generation, objectives, optim
from zoo.checkpoints import reading
from zoo.context import Trace
from zoo.data.eval_breakdown import EvalBreakdown
from zoo.errors import ZooError
from zoo.registry import build
from zoo.training import divergence, fsdp

Batch = dict[str, Tensor]
SUMS = ("nats", "right", "tokens", "bytes")  # of an evaluation


class LMModule(lightning.LightningModule):
    """Trains a model by the configuration's objective, optimiser and schedule; every token weighs the same.

    A token's weight depends neither on the micro-batch nor on the rank it fell into: the losses are summed, and before each
    optimiser step the gradient is divided by the number of labelled tokens that made it.
    """

    def __init__(self, config: dict[str, Any], model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.config, self.model, self.tokenizer = config, model, tokenizer
        self.objective = build(
            "objective", config["objective"], tokenizer, config["loader"]["length"]
        )
        self.byte_lengths = F.pad(
            torch.as_tensor(tokenizer.byte_lengths()), (0, self.objective.extra)
        )
        # not modules of this one, with which they would be turned to 16 bits
        self.sums: Any = {
            name: SumMetric(nan_strategy="disable").set_dtype(torch.double) for name in SUMS
        }  # else dropped
        self.spread: EvalBreakdown | None = (
            None  # of the last evaluation, where the loss is over a whole text
        )
        self.shown = torch.zeros(2)  # loss and tokens since the last row of metrics

    def configure_model(self) -> None:
        """Where the strategy cuts the model into shards, it has been made without content, and gets it now."""
        if (
            isinstance(self.trainer.strategy, fsdp.Sharded)
            and next(self.model.parameters()).is_meta
        ):
            fsdp.shard(self.model, self.trainer.strategy, self.config["seed"])

    def on_fit_start(self) -> None:
        # not buffers: DDP would overwrite them with those of the first rank
        self.window = torch.zeros(2, device=self.device)  # loss and tokens of this step
        self.shown = self.shown.to(self.device)
        self.loads: dict[
            Any, Tensor
        ] = {}  # of the routers that balance without a loss, in this step

    def on_train_start(self) -> None:
        """With its state an optimiser is given back the options and the rate that it had; here it gets those of now.

        They are others where `changing` names some, also where only the steps are more: a schedule's next rate hangs on these.
        """
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        schedule: Any = self.lr_schedulers()
        made = build(
            "optim", self.config["optim"], optim.parameter_groups(self.model, self.config["init"])
        )
        kept = ("params", *getattr(made, "progress", ()))
        schedule.base_lrs = [group["lr"] for group in made.param_groups]
        for group, new, factor in zip(
            optimizer.param_groups, made.param_groups, schedule.lr_lambdas, strict=True
        ):
            options = {name: value for name, value in new.items() if name not in kept}
            group.update(options, initial_lr=new["lr"], lr=new["lr"] * factor(schedule.last_epoch))
        self._take_mean(False)

    def on_train_end(self) -> None:
        self._take_mean(True)

    def on_validation_start(self) -> None:
        self._take_mean(True)

    def on_validation_end(self) -> None:
        self._take_mean(self.trainer.state.fn != "fit")

    @contextlib.contextmanager
    def as_used(self) -> Iterator[None]:
        """Within it the model has the weights that it is to be used with, which can be others than those that it learns at."""
        self._take_mean(True)
        yield
        self._take_mean(False)

    def _take_mean(self, mean: bool) -> None:
        """Of an optimiser that keeps a mean of the weights let the model have that, or what it learns at."""
        optimizer: Any
        for optimizer in self.trainer.optimizers:
            if hasattr(optimizer, "eval"):
                (optimizer.eval if mean else optimizer.train)()

    def training_step(self, batch: Batch, index: int) -> Tensor:
        trace = Trace()
        loss, tokens = self.objective(self.model, batch, trace)
        sums = torch.stack([loss.detach(), tokens])
        self.window += sums
        self.shown += sums
        for router, loads in trace.loads:
            self.loads[router] = self.loads.get(router, 0) + loads
        return (
            sum((self.objective.labelled_fraction * other for other in trace.losses), loss)
            / self._nominal_tokens()
        )

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Turn the gradient of the sum into that of the mean over all tokens of the step, on all ranks."""
        world = self.trainer.world_size
        tokens = (
            self.window[1]
            if world == 1
            else self.trainer.strategy.reduce(self.window[1].clone(), reduce_op="sum")
        )
        scale = (
            self._nominal_tokens()
            * self.trainer.accumulate_grad_batches
            * world
            / tokens.clamp(min=1)
        )
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        gradients = [fsdp.local(p.grad) for p in parameters if p.grad is not None]
        if gradients and (scale.is_cuda or scale != 1):  # asking a GPU would wait for it
            torch._foreach_mul_(gradients, scale)
        self.gradient_scale = scale
        self.window.zero_()
        self._rebalance()

    def _rebalance(self) -> None:
        """Let each router know what all micro-batches and ranks of this step gave to its experts."""
        if self.loads:
            loads = self.trainer.strategy.reduce(
                torch.cat(list(self.loads.values())), reduce_op="sum"
            )
            for router, own in zip(
                self.loads, loads.split([len(own) for own in self.loads.values()]), strict=True
            ):
                router.rebalance(own)
            self.loads.clear()

    def _nominal_tokens(self) -> int:
        """Tokens of a full micro-batch: Lightning and DDP divide by constants, so the sum is kept near a mean."""
        loader, trainer = self.config["loader"], self.trainer
        return max(
            1,
            loader["batch_size"]
            * loader["length"]
            // (trainer.accumulate_grad_batches * trainer.world_size),
        )

    def on_validation_epoch_start(self) -> None:
        for sums in self.sums.values():
            sums.to(self.device)
        data: Any = getattr(self.trainer, "datamodule", None)
        self.spread = (
            data.breakdown("val")
            if data is not None and self.objective.loss_scope is None
            else None
        )

    def validation_step(self, batch: Batch, index: int) -> None:
        nats, right, labels = self.objective.evaluate(self.model, batch)
        real = labels[labels >= 0]
        found = (
            nats.double().sum(),
            right.sum(),
            len(real),
            self.byte_lengths[real.cpu()].sum().to(self.device),
        )
        for name, value in zip(SUMS, found, strict=True):
            self.sums[name].update(value)
        if self.spread is not None:
            self.spread.add(batch["indices"], nats.view_as(batch["labels"]), batch["labels"])

    def on_validation_epoch_end(self) -> None:
        nats, right, tokens, size = (self.sums[name].compute() for name in SUMS)
        for sums in self.sums.values():
            sums.reset()
        if not tokens:
            raise ZooError(
                "the evaluation has no token to be measured: give more text to validate on, or hide more of it"
            )
        if self.spread is not None and self.trainer.world_size > 1:
            for spread in (self.spread.by_document, self.spread.by_position):
                spread.copy_(self.trainer.strategy.reduce(spread.to(self.device), reduce_op="sum"))
        loss = nats / tokens
        figures = (loss, loss.exp(), nats / math.log(2) / size, right / tokens)
        exact = dict(zip(objectives.EVAL_METRICS, figures, strict=True))
        if not size:  # no label stands for a part of the text
            del exact["val/bits_per_byte"]
        measured = {name: value.item() for name, value in exact.items()}
        divergence.refuse_metrics(self, measured, self.trainer.global_step)
        self.log_dict(exact, logger=False, rank_zero_only=True)  # for checkpoints/best.ckpt
        for logger in self.trainer.loggers:
            logger.log_metrics(measured, self.trainer.global_step)

    def configure_optimizers(self) -> Any:
        optimizer = build(
            "optim", self.config["optim"], optim.parameter_groups(self.model, self.config["init"])
        )
        wanted, given = getattr(optimizer, "schedule", None), self.config["schedule"]["name"]
        if wanted not in (None, given):
            raise ZooError(
                f"optim={self.config['optim']['name']} is made for schedule={wanted}, not {given}: give that one"
            )
        schedule = build("schedule", self.config["schedule"], self.config["trainer"]["max_steps"])
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint tells by itself what it is of: its configuration and tokenizer travel with the weights.

        Raises Diverged in a run whose numbers are not finite, so that the one before stays.
        """
        if self._trainer is not None:
            divergence.refuse_weights(self, checkpoint)
        checkpoint["zoo"] = {
            "format": reading.FORMAT,
            "config": self.config,
            "tokenizer": self.tokenizer.dumps(),
        }

    def answer(
        self,
        prompt: str,
        *,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int | None = 50,
        seed: int = 0,
    ) -> str:
        """What this model makes of a text, the text included; what the options are is said at zoo.generation.generate."""
        raise NotImplementedError

    def sample(self, ids: np.ndarray, seed: int = 0) -> str:
        """Something to look at, where need be from these tokens of a text that it was not trained on."""
        raise NotImplementedError

    @property
    def room(self) -> int:
        """The most tokens that a sample may have."""
        return self.model.limit or self.config["arch"]["length"]

    def _row(self, ids: Sequence[int] | np.ndarray) -> Tensor:
        return torch.as_tensor(ids, dtype=torch.long, device=next(self.model.parameters()).device)[
            None
        ]


class GPT(LMModule):
    """A decoder trained on the next token, used to generate."""

    def generate(
        self,
        prompt: str = "",
        *,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int | None = 50,
        seed: int = 0,
    ) -> str:
        """The continuation of a text, which starts a document; the same seed gives the same text."""
        eot, encoded = self.tokenizer.eot, self.tokenizer.encode(prompt)
        written = generation.generate(
            self.model,
            self._row([eot, *encoded]),
            tokens,
            temperature=temperature,
            top_k=top_k,
            end=eot,
            seed=seed,
        )
        return self.tokenizer.decode([token for token in written[0].tolist() if token != eot])

    def answer(self, prompt: str, **how: Any) -> str:
        return prompt + self.generate(prompt, **how)

    def sample(self, ids: np.ndarray, seed: int = 0) -> str:
        return self.generate(tokens=min(300, self.room - 1), seed=seed)


class BERT(LMModule):
    """An encoder trained on hidden tokens, used to fill masks."""

    def fill_mask(self, text: str, *, top: int = 5) -> list[list[tuple[str, float]]]:
        """The likeliest tokens at each [MASK] of a text, which starts a document, with their probabilities.

        A mask is one token: with tokenizer=byte, one byte. Raises ZooError for a text without a mask.
        """
        asked = self.objective.encode_prompt(
            [self.tokenizer.encode(part) for part in text.split(objectives.MASK_TOKEN)]
        )
        places = np.flatnonzero(asked == self.objective.mask)
        if not len(places):
            raise ZooError(
                f"this model fills masks: write {objectives.MASK_TOKEN} in the prompt, once for each token that is"
                " missing"
            )
        best = self._at(self._row(asked), places).topk(min(top, self.tokenizer.vocab))
        return [
            [
                (self.tokenizer.decode([token]), share)
                for token, share in zip(tokens, shares, strict=True)
            ]
            for tokens, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def answer(self, prompt: str, **how: Any) -> str:
        """The text with its masks filled, and of each mask the likeliest tokens."""
        found, parts = self.fill_mask(prompt), prompt.split(objectives.MASK_TOKEN)
        filled = "".join(
            map("".join, zip_longest(parts, (best[0][0] for best in found), fillvalue=""))
        )
        lines = [", ".join(f"{token!r} {share:.1%}" for token, share in best) for best in found]
        return "\n".join(
            [filled, "", *(f"mask {number}: {line}" for number, line in enumerate(lines, 1))]
        )

    def sample(self, ids: np.ndarray, seed: int = 0) -> str:
        width = min(self.room, len(ids), 300)
        text = ids[: min(len(ids), 300) // width * width].astype(np.int64)
        rows = torch.as_tensor(text).view(-1, width)
        hidden = self.objective.prepare(
            {"tokens": rows, "labels": rows, "indices": torch.arange(len(rows))}, seed
        )
        places = hidden["places"].numpy()
        best = self._at(hidden["tokens"], places).argmax(-1).tolist()
        shown = [
            self.tokenizer.decode(part)
            for part in np.split(text, np.sort([*places, *(places + 1)]))
        ]
        shown[1::2] = [f"«{self.tokenizer.decode([token])}»" for token in best]
        right = (text[places] == best).sum()
        return (
            "".join(shown)
            + f"\n({right} of the {len(best)} hidden tokens are filled in as they were)"
        )

    def _at(self, tokens: Tensor, places: np.ndarray) -> Tensor:
        tokens, at = tokens.to(self._row([]).device), self._row(places)[0]
        return generation.at_places(self.model, tokens, at, self.tokenizer.vocab)


class T5(LMModule):
    """An encoder-decoder, used to fill the gaps of a text, or to go on with it, as its objective is."""

    def generate(
        self,
        prompt: str = "",
        *,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int | None = 50,
        seed: int = 0,
    ) -> str:
        """The text with each [MASK] replaced by as many tokens as it takes; without one, the text and what comes next."""
        parts = [self.tokenizer.encode(part) for part in prompt.split(objectives.MASK_TOKEN)]
        return self._joined(parts, self._fill(parts, tokens, temperature, top_k, seed))

    def answer(self, prompt: str, **how: Any) -> str:
        return self.generate(prompt, **how)

    def sample(self, ids: np.ndarray, seed: int = 0) -> str:
        parts, missing = self.objective.example(ids[: min(300, self.room) - 2])
        fills = self._fill(parts, min(60, self.room - 2), 0.0, None, seed)
        return (
            self._joined(parts, fills, "«{}»")
            + f"\n(hidden was «{self.tokenizer.decode(missing)}»)"
        )

    def _fill(
        self, parts: list[np.ndarray], new: int, temperature: float, top_k: int | None, seed: int
    ) -> list[str]:
        source, begin, end = self.objective.encode_prompt(parts)
        written = generation.generate(
            self.model,
            self._row(begin),
            new,
            temperature=temperature,
            top_k=top_k,
            end=end,
            seed=seed,
            source=self._row(source),
        )
        fills = self.objective.parse_output([*begin, *written[0].tolist()])
        return [self.tokenizer.decode(fill) for fill in fills[: max(len(parts) - 1, 1)]]

    def _joined(self, parts: list[np.ndarray], fills: list[str], form: str = "{}") -> str:
        texts = [self.tokenizer.decode(part) for part in parts]
        return "".join(
            text + fill for text, fill in zip_longest(texts, map(form.format, fills), fillvalue="")
        )


FAMILIES: dict[str, type[LMModule]] = {"decoder": GPT, "encoder": BERT, "encoder_decoder": T5}


def lm_module(config: dict[str, Any], model: Any, tokenizer: Any) -> LMModule:
    """The LightningModule of a model, by the family that it is of."""
    return FAMILIES[model.family](config, model, tokenizer)
