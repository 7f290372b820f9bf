"""What is measured, as data. A candidate is a function from a shape to a step; a suite's first candidate is its floor.

A step is called without arguments, does the work once and returns what it computed (logits, a loss, tokens). A candidate with
the floor's weights must return the floor's values: this is checked before anything is timed. To add a peer, write a function
into peers.py and name it in a suite; import the peer inside it, so that it is needed only where it is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import zoo
from benchmarks import floor, harness, peers
from zoo import generation, optim
from zoo.objectives import IGNORE
from zoo.registry import build

LR = 1e-5  # so small that thousands of steps on one batch leave ordinary numbers to compute with
FORWARD, TRAINING, DECODING, SWEEP = (
    "forward",
    "training step",
    "decoding 256 tokens",
    f"{harness.RUNS} runs of {harness.STEPS} steps",
)
Step = Callable[[], Tensor]


class Loop(NamedTuple):
    """A candidate that has a loop of its own, and calls the function that it is given before each step."""

    run: Callable[[Callable[[], None]], None]


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
        return replace(self, layers=1, dim=8 * self.heads, length=16, vocab=16, batch=1)


@dataclass(frozen=True)
class Family:
    """The zoo's words for a model, its floor (weights, shape) -> forward, the batch that it learns from, and its objective."""

    words: tuple[str, ...]
    floor: Callable[[floor.Weights, Shape], Callable[..., Tensor]]
    batch: Callable[[Shape], floor.Batch]
    objective: str

    def model(self, shape: Shape) -> Any:
        return zoo.build(*self.words, *shape.words())


def random(shape: Shape, *size: int, seed: int = 0) -> Tensor:
    return torch.randint(shape.vocab, size, generator=torch.Generator().manual_seed(seed))


def next_token(shape: Shape) -> floor.Batch:
    """Random tokens (B, T), and as labels those that follow."""
    tokens = random(shape, shape.batch, shape.length + 1)
    return {"tokens": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}


def hidden_tokens(shape: Shape) -> floor.Batch:
    """Rows of which none, a thirty-second, two ... are padding at the end; of the other places 15 % have a label."""
    tokens, labels = (random(shape, shape.batch, shape.length, seed=seed) for seed in (0, 1))
    real = (
        torch.arange(shape.length)
        < shape.length - shape.length // 32 * torch.arange(shape.batch)[:, None]
    )
    chosen = (random(replace(shape, vocab=100), *tokens.shape, seed=2) < 15) & real
    places = chosen.flatten().nonzero()[:, 0]
    return {
        "tokens": tokens,
        "labels": labels.masked_fill(~chosen, IGNORE),
        "places": places,
        "padding_mask": real,
    }


def source_and_target(shape: Shape) -> floor.Batch:
    """Random tokens (B, T), of which a decoder makes a quarter as many."""
    tokens, target = (
        random(shape, shape.batch, shape.length),
        random(shape, shape.batch, shape.length // 4 + 1, seed=1),
    )
    return {
        "tokens": tokens,
        "decoder_tokens": target[:, :-1].contiguous(),
        "labels": target[:, 1:].contiguous(),
    }


KV_HEADS = 2
GPT = Family(("gpt", "norm.bias=false"), lambda w, s: floor.gpt(w, s.heads), next_token, "clm")
LLAMA = Family(
    ("gpt", "norm=rms", "pos=rope", "attn=gqa", "ffn=swiglu"),
    lambda w, s: floor.llama(w, s.heads, KV_HEADS, s.length),
    next_token,
    "clm",
)
BERT = Family(("bert",), lambda w, s: floor.bert(w, s.heads), hidden_tokens, "mlm")
T5 = Family(("t5",), lambda w, s: floor.t5(w, s.heads), source_and_target, "seq2seq")


def training(loss: Callable[[], Tensor], optimiser: torch.optim.Optimizer) -> Step:
    """One optimiser step: forward, loss, backward, update, gradients set free."""

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
    weights, batch = floor.taken(family.model(shape)), family.batch(shape)
    forward = family.floor(weights, shape)
    if measure == DECODING:
        size = (
            1,
            KV_HEADS if family is LLAMA else shape.heads,
            shape.length,
            shape.dim // shape.heads,
        )
        prompt, new = prompt_of(shape)
        return without_gradients(
            lambda: floor.greedy(forward, prompt, new, floor.Kept(shape.layers, size))
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
        given = {
            name: batch[name]
            for name in ("tokens", "decoder_tokens", "padding_mask")
            if name in batch
        }
        return without_gradients(lambda: model(**given)[:1])
    objective = build("objective", family.objective, build("tokenizer", "byte"), shape.length)
    labels = int(
        (batch["labels"] != IGNORE).sum()
    )  # the Learner, too, divides by a number that it knows
    return training(
        lambda: objective(model, batch)[0] / labels,
        build("optim", {"name": "adamw", "lr": LR}, optim.parameter_groups(model)),
    )


def prompt_of(shape: Shape) -> tuple[Tensor, int]:
    """A prompt of 16 tokens, and how many new ones: 256, where there is room."""
    prompt = random(shape, 1, min(16, shape.length // 2))
    return prompt, min(256, shape.length - prompt.shape[1])


@dataclass(frozen=True)
class Suite:
    """`measures` are made of each candidate; memory is that of the last of them. The first is the floor, with whose weights
    those of `same_weights` are."""

    about: str
    shapes: dict[str, Shape]
    measures: tuple[str, ...]
    candidates: dict[str, Callable[[str, Shape], Step]]
    same_weights: tuple[str, ...] = ("floor again", "zoo")
    memory: bool = True


SMALL = Shape(layers=6, dim=384, heads=6, length=256, vocab=8192, batch=4)
MICRO = Shape(layers=2, dim=64, heads=2, length=32, vocab=64, batch=4)
LONG = Shape(layers=2, dim=256, heads=4, length=2048, vocab=8192, batch=1)


def side_by_side(family: Family, **others: Any) -> dict[str, Callable[[str, Shape], Step]]:
    ours = {
        "floor": partial(floor_step, family),
        "floor again": partial(floor_step, family),
        "zoo": partial(zoo_step, family),
    }
    return ours | {name.replace("_", "-"): peer for name, peer in others.items()}


def peer(make: Callable[[Shape], Any], family: Family) -> Callable[[str, Shape], Step]:
    """A model from elsewhere: `make` gives the module, a function from a batch to logits, and one that decodes or None."""

    def step(measure: str, shape: Shape) -> Step:
        made, batch = make(shape), family.batch(shape)
        if measure == DECODING:
            if made.decode is None:
                raise peers.Missing("has no cache")
            prompt, new = prompt_of(shape)
            made.model.eval()
            return without_gradients(lambda: made.decode(prompt, new))
        if measure == FORWARD:
            return without_gradients(lambda: made.logits(batch))
        weights = dict(made.model.named_parameters())
        return training(lambda: floor.loss(made.logits(batch), batch), floor.adamw(weights, LR))

    return step


BOTH = (FORWARD, TRAINING)
SUITES = {
    "gpt": Suite(
        "a GPT: layer norm, learned positions, exact GELU, tied head, no biases",
        {"small": SMALL, "micro": MICRO},
        BOTH,
        side_by_side(
            GPT,
            transformers=peer(peers.gpt2, GPT),
            x_transformers=peer(peers.x_gpt, GPT),
            litgpt=peer(peers.lit_gpt, GPT),
            torch_nn=peer(peers.torch_gpt, GPT),
        ),
    ),
    "llama": Suite(
        "RMSNorm, RoPE, SwiGLU, two heads of keys and values, tied head",
        {"small": SMALL, "micro": MICRO},
        BOTH,
        side_by_side(
            LLAMA,
            transformers=peer(peers.llama, LLAMA),
            x_transformers=peer(peers.x_llama, LLAMA),
            litgpt=peer(peers.lit_llama, LLAMA),
        ),
    ),
    "bert": Suite(
        "an encoder with a padding mask, 15 % of the tokens to be learned",
        {"small": SMALL, "small, 30k words": replace(SMALL, vocab=30_522), "micro": MICRO},
        BOTH,  # BERT's own words
        side_by_side(
            BERT,
            transformers=peer(peers.bert, BERT),
            x_transformers=peer(peers.x_bert, BERT),
            torch_nn=peer(peers.torch_bert, BERT),
        ),
    ),
    "t5": Suite(
        "an encoder-decoder with learned relative bias; a quarter as many targets as inputs",
        {
            "small": Shape(layers=4, dim=256, heads=4, length=256, vocab=8192, batch=4),
            "micro": MICRO,
        },
        BOTH,
        side_by_side(T5, transformers=peer(peers.t5, T5), x_transformers=peer(peers.x_t5, T5)),
    ),
    "long": Suite(
        "a GPT of two layers on 2,048 tokens",
        {"long": LONG},
        (TRAINING,),
        side_by_side(
            GPT,
            transformers=peer(peers.gpt2, GPT),
            x_transformers=peer(peers.x_gpt, GPT),
            litgpt=peer(peers.lit_gpt, GPT),
            torch_nn=peer(peers.torch_gpt, GPT),
        ),
    ),
    "generate": Suite(
        "a GPT writes with its cache, batch 1",
        {"small": replace(SMALL, length=288)},
        (DECODING,),
        side_by_side(
            GPT,
            transformers=peer(peers.gpt2, GPT),
            x_transformers=peer(peers.x_gpt, GPT),
            litgpt=peer(peers.lit_gpt, GPT),
        ),
    ),
    "generate_llama": Suite(
        "a LLaMA writes with its cache, batch 1",
        {"small": replace(SMALL, length=288)},
        (DECODING,),
        side_by_side(
            LLAMA,
            transformers=peer(peers.llama, LLAMA),
            x_transformers=peer(peers.x_llama, LLAMA),
            litgpt=peer(peers.lit_llama, LLAMA),
        ),
    ),
    "lightning": Suite(
        "a GPT trained by Lightning with logging and the progress bar, beside a raw loop",
        {"small": SMALL, "micro": MICRO},
        (TRAINING,),
        {
            "floor": partial(harness.raw, GPT),
            "floor again": partial(harness.raw, GPT),
            "lightning": partial(harness.lightning, GPT),
        },
        same_weights=("floor again",),
        memory=False,
    ),
    "sweep": Suite(
        "a sweep of a tiny GPT by the command, beside its runs one after the other in one process",
        {"micro": MICRO},
        (SWEEP,),
        {
            "floor": partial(harness.sweep, GPT, hydra=False),
            "floor again": partial(harness.sweep, GPT, hydra=False),
            "zoo": partial(harness.sweep, GPT, hydra=True),
        },
        same_weights=(),
        memory=False,
    ),
}
