"""What is measured, as data. A candidate is a function that builds a step; a measure's first candidate is its floor.

A step is called without arguments, does the work once and returns what it computed (logits, a loss). A candidate with
the floor's weights must return the floor's values: this is checked before anything is timed. To add a peer, write a
function from a Shape to a step and name it in a suite; import the peer inside it, so that it is needed only where it is
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

import zoo
from benchmarks import floor
from zoo import optim
from zoo.registry import build

LR = 1e-5  # so small that thousands of steps on one batch leave ordinary numbers to compute with


@dataclass(frozen=True)
class Shape:
    layers: int
    dim: int
    heads: int
    length: int
    vocab: int
    batch: int

    def words(self) -> list[str]:
        """The shape in the zoo's words."""
        return [f"arch.{name}={value}" for name, value in asdict(self).items() if name != "batch"]

    def tiny(self) -> Shape:
        """The same with next to nothing to do, to warm up a process."""
        return replace(self, layers=1, dim=8 * self.heads, length=8, vocab=16, batch=1)

    def batch_of_tokens(self) -> dict[str, Tensor]:
        """Random tokens (batch, length), and as labels those that follow."""
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.vocab, (self.batch, self.length + 1), generator=generator)
        return {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}


Step = Callable[[], Tensor]
Candidate = Callable[[Shape], Step]


@dataclass(frozen=True)
class Suite:
    """`measures` names the candidates of each thing timed; memory is measured over the first of them."""

    about: str
    shapes: dict[str, Shape]
    measures: dict[str, dict[str, Candidate]]
    same_weights: tuple[str, ...]  # the candidates that must return what the floor returns


def training(loss: Callable[[], Tensor], optimiser: torch.optim.Optimizer) -> Step:
    """One optimiser step: forward, loss, backward, update, gradients set free."""

    def step() -> Tensor:
        value = loss()
        value.backward()
        optimiser.step()
        optimiser.zero_grad()
        return value.detach()

    return step


def inference(model: Callable[[Tensor], Tensor], tokens: Tensor) -> Step:
    """One forward to the logits, without gradients."""

    @torch.no_grad()
    def step() -> Tensor:
        return model(tokens)

    return step


def zoo_model(words: Sequence[str], shape: Shape) -> Any:
    return zoo.build(words[0], *words[1:], *shape.words())


def zoo_training(*words: str) -> Candidate:
    """The zoo's model, objective and optimiser, without Lightning."""

    def candidate(shape: Shape) -> Step:
        model, batch = zoo_model(words, shape), shape.batch_of_tokens()
        objective = build("objective", "clm", build("tokenizer", "byte"), shape.length)

        def loss() -> Tensor:
            total, tokens = objective(model, batch)
            return total / tokens

        return training(loss, build("optim", {"name": "adamw", "lr": LR}, optim.parameter_groups(model)))

    return candidate


def zoo_forward(*words: str) -> Candidate:
    return lambda shape: inference(zoo_model(words, shape), shape.batch_of_tokens()["tokens"])


GPT = ("gpt", "norm.bias=false")


def floor_gpt(shape: Shape) -> floor.FloorGPT:
    return floor.from_zoo(zoo_model(GPT, shape), heads=shape.heads)


def floor_gpt_training(shape: Shape) -> Step:
    model, batch = floor_gpt(shape), shape.batch_of_tokens()
    return training(lambda: model.loss(batch["tokens"], batch["labels"]), model.optimiser(LR))


def floor_gpt_forward(shape: Shape) -> Step:
    return inference(floor_gpt(shape), shape.batch_of_tokens()["tokens"])


SUITES = {
    "gpt": Suite(
        about="a GPT: layer norm, learned positions, exact GELU, tied head, no biases, float32",
        shapes={
            "small": Shape(layers=6, dim=384, heads=6, length=256, vocab=8192, batch=4),
            "micro": Shape(layers=2, dim=64, heads=2, length=32, vocab=64, batch=4),
        },
        measures={
            "training step": {
                "floor": floor_gpt_training,
                "floor again": floor_gpt_training,
                "zoo": zoo_training(*GPT),
            },
            "forward": {
                "floor": floor_gpt_forward,
                "floor again": floor_gpt_forward,
                "zoo": zoo_forward(*GPT),
            },
        },
        same_weights=("floor again", "zoo"),
    ),
}
