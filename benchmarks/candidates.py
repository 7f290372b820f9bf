"""Models, shapes and batches that are measured, and the steps that the candidates take.

A candidate is a function from a measure and a shape to a step. A step takes no arguments, does the
work once and returns what it computed: logits, a loss, or tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import zoo
from benchmarks import floor, peers
from benchmarks.shapes import Shape
from zoo import generation, optim
from zoo.objectives import IGNORE
from zoo.registry import build

LR = 1e-5  # small enough for thousands of steps on one batch to keep ordinary numbers
SWEEP_RUNS = 4
SWEEP_STEPS = 200  # of each run
FORWARD = "forward"
TRAINING = "training step"
DECODING = "decoding 256 tokens"
SWEEP = f"{SWEEP_RUNS} runs of {SWEEP_STEPS} steps"
KV_HEADS = 2  # of LLaMA
Step = Callable[[], Tensor]


class Loop(NamedTuple):
    """A candidate with a loop of its own, which calls the given function before each step."""

    run: Callable[[Callable[[], None]], None]


@dataclass(frozen=True)
class Family:
    """A model of the zoo by its overrides, its floor, its training batch, and its objective.

    `floor` makes the forward of the hand-written model from weights and a shape.
    """

    overrides: tuple[str, ...]
    floor: Callable[[floor.Weights, Shape], Callable[..., Tensor]]
    batch: Callable[[Shape], floor.Batch]
    objective: str

    def model(self, shape: Shape) -> Any:
        return zoo.build(*self.overrides, *shape.overrides())


def random(shape: Shape, *size: int, seed: int = 0) -> Tensor:
    return torch.randint(shape.vocab, size, generator=torch.Generator().manual_seed(seed))


def next_token(shape: Shape) -> floor.Batch:
    """Random tokens (B, T), with those that follow as labels."""
    tokens = random(shape, shape.batch, shape.length + 1)
    return {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}


def masked_tokens(shape: Shape) -> floor.Batch:
    """Random tokens (B, T), of which 15 % have a label.

    Row n of the batch ends in n/32 padding.
    """
    tokens = random(shape, shape.batch, shape.length, seed=0)
    labels = random(shape, shape.batch, shape.length, seed=1)
    padding = shape.length // 32 * torch.arange(shape.batch)
    real = torch.arange(shape.length) < shape.length - padding[:, None]
    percent = random(replace(shape, vocab=100), *tokens.shape, seed=2)
    chosen = (percent < 15) & real
    return {
        "tokens": tokens,
        "labels": labels.masked_fill(~chosen, IGNORE),
        "places": chosen.flatten().nonzero()[:, 0],
        "padding_mask": real,
    }


def source_and_target(shape: Shape) -> floor.Batch:
    """Random source tokens (B, T), and a target a quarter as long."""
    target = random(shape, shape.batch, shape.length // 4 + 1, seed=1)
    return {
        "tokens": random(shape, shape.batch, shape.length),
        "decoder_tokens": target[:, :-1].contiguous(),
        "labels": target[:, 1:].contiguous(),
    }


def prompt_of(shape: Shape) -> tuple[Tensor, int]:
    """A prompt of 16 tokens, and the number of new ones: 256, or as many as the length allows."""
    prompt = random(shape, 1, min(16, shape.length // 2))
    return prompt, min(256, shape.length - prompt.shape[1])


GPT = Family(("gpt", "norm.bias=false"), lambda w, s: floor.gpt(w, s.heads), next_token, "clm")
LLAMA = Family(
    ("gpt", "norm=rms", "pos=rope", "attn=gqa", "ffn=swiglu"),
    lambda w, s: floor.llama(w, s.heads, KV_HEADS, s.length),
    next_token,
    "clm",
)
BERT = Family(("bert",), lambda w, s: floor.bert(w, s.heads), masked_tokens, "mlm")
T5 = Family(("t5",), lambda w, s: floor.t5(w, s.heads), source_and_target, "seq2seq")


def training(loss: Callable[[], Tensor], optimiser: torch.optim.Optimizer) -> Step:
    """One optimiser step: forward, loss, backward, update, zero the gradients."""

    def step() -> Tensor:
        value = loss()
        value.backward()
        optimiser.step()
        optimiser.zero_grad()
        return value.detach()

    return step


def without_gradients(run: Callable[[], Tensor]) -> Step:
    return torch.no_grad()(run)


def floor_step(family: Family, measure: str, shape: Shape) -> Step:
    """The hand-written model, with a copy of the zoo's weights."""
    weights, batch = floor.trainable_copy(family.model(shape)), family.batch(shape)
    forward = family.floor(weights, shape)
    if measure == DECODING:
        kv_heads = KV_HEADS if family is LLAMA else shape.heads
        size = (1, kv_heads, shape.length, shape.dim // shape.heads)
        prompt, new = prompt_of(shape)
        return without_gradients(
            lambda: floor.greedy(forward, prompt, new, floor.Cache(shape.layers, size))
        )
    if measure == FORWARD:
        return without_gradients(lambda: forward(batch)[:1])  # the row without padding
    return training(lambda: floor.loss(forward(batch), batch), floor.adamw(weights, LR))


def zoo_step(family: Family, measure: str, shape: Shape) -> Step:
    """The zoo's model, objective and optimiser, without Lightning."""
    model, batch = family.model(shape), family.batch(shape)
    if measure == DECODING:
        prompt, new = prompt_of(shape)
        return lambda: generation.generate(model, prompt, new, temperature=0)
    if measure == FORWARD:
        names = ("tokens", "decoder_tokens", "padding_mask")
        inputs = {name: batch[name] for name in names if name in batch}
        return without_gradients(lambda: model(**inputs)[:1])
    objective = build("objective", family.objective, build("tokenizer", "byte"), shape.length)
    labels = int((batch["labels"] != IGNORE).sum())  # LMModule, too, knows the number in advance
    adamw = build("optim", {"name": "adamw", "lr": LR}, optim.parameter_groups(model))
    return training(lambda: objective(model, batch)[0] / labels, adamw)


def peer_step(
    make: Callable[[Shape], peers.Peer], family: Family, measure: str, shape: Shape
) -> Step:
    """The model of another library, which `make` makes."""
    made, batch = make(shape), family.batch(shape)
    if measure == DECODING:
        decode = made.decode
        if decode is None:
            raise peers.Missing("has no cache")
        prompt, new = prompt_of(shape)
        made.model.eval()
        return without_gradients(lambda: decode(prompt, new))
    if measure == FORWARD:
        return without_gradients(lambda: made.logits(batch))
    weights = dict(made.model.named_parameters())
    return training(lambda: floor.loss(made.logits(batch), batch), floor.adamw(weights, LR))
