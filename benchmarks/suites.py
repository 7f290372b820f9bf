"""What is measured, as data: each suite with its shapes, measures and candidates.

The first candidate of a suite is its floor. A candidate with the floor's weights must return the
floor's values: this is checked before anything is timed. To add a peer, write a function into
peers.py and name it in a suite; import the peer's library inside it, so that it is needed only
where it is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from benchmarks import harness, peers
from benchmarks.candidates import (
    BERT,
    DECODING,
    FORWARD,
    GPT,
    LLAMA,
    SWEEP,
    T5,
    TRAINING,
    Family,
    Loop,
    Step,
    floor_step,
    peer_step,
    zoo_step,
)
from benchmarks.shapes import Shape

Candidate = Callable[[str, Shape], Step | Loop]


@dataclass(frozen=True)
class Suite:
    """`measures` are taken of each candidate, and peak memory in training unless `memory` is off.

    The candidates in `same_weights` have the weights of the floor, which is the first candidate.
    """

    about: str
    shapes: dict[str, Shape]
    measures: tuple[str, ...]
    candidates: dict[str, Candidate]
    same_weights: tuple[str, ...] = ("floor again", "zoo")
    memory: bool = True


SMALL = Shape(layers=6, dim=384, heads=6, length=256, vocab=8192, batch=4)
MICRO = Shape(layers=2, dim=64, heads=2, length=32, vocab=64, batch=4)
LONG = Shape(layers=2, dim=256, heads=4, length=2048, vocab=8192, batch=1)


def side_by_side(family: Family, **others: Callable[[Shape], peers.Peer]) -> dict[str, Candidate]:
    """The floor twice, the zoo, and peers, each by the function that makes its model."""
    ours: dict[str, Candidate] = {
        "floor": partial(floor_step, family),
        "floor again": partial(floor_step, family),
        "zoo": partial(zoo_step, family),
    }
    theirs = {
        name.replace("_", "-"): partial(peer_step, make, family) for name, make in others.items()
    }
    return ours | theirs


BOTH = (FORWARD, TRAINING)
SUITES = {
    "gpt": Suite(
        "a GPT: layer norm, learned positions, exact GELU, tied head, no biases",
        {"small": SMALL, "micro": MICRO},
        BOTH,
        side_by_side(
            GPT,
            transformers=peers.gpt2,
            x_transformers=peers.x_gpt,
            litgpt=peers.lit_gpt,
            torch_nn=peers.torch_gpt,
        ),
    ),
    "llama": Suite(
        "RMSNorm, RoPE, SwiGLU, two heads of keys and values, tied head",
        {"small": SMALL, "micro": MICRO},
        BOTH,
        side_by_side(
            LLAMA,
            transformers=peers.llama,
            x_transformers=peers.x_llama,
            litgpt=peers.lit_llama,
        ),
    ),
    "bert": Suite(
        "an encoder with a padding mask, 15 % of the tokens to be learned",
        {"small": SMALL, "small, 30k words": replace(SMALL, vocab=30_522), "micro": MICRO},
        BOTH,
        side_by_side(
            BERT,
            transformers=peers.bert,
            x_transformers=peers.x_bert,
            torch_nn=peers.torch_bert,
        ),
    ),
    "t5": Suite(
        "an encoder-decoder with learned relative bias; a quarter as many targets as inputs",
        {
            "small": Shape(layers=4, dim=256, heads=4, length=256, vocab=8192, batch=4),
            "micro": MICRO,
        },
        BOTH,
        side_by_side(T5, transformers=peers.t5, x_transformers=peers.x_t5),
    ),
    "long": Suite(
        "a GPT of two layers on 2,048 tokens",
        {"long": LONG},
        (TRAINING,),
        side_by_side(
            GPT,
            transformers=peers.gpt2,
            x_transformers=peers.x_gpt,
            litgpt=peers.lit_gpt,
            torch_nn=peers.torch_gpt,
        ),
    ),
    "generate": Suite(
        "a GPT writes with its cache, batch 1",
        {"small": replace(SMALL, length=288)},
        (DECODING,),
        side_by_side(
            GPT,
            transformers=peers.gpt2,
            x_transformers=peers.x_gpt,
            litgpt=peers.lit_gpt,
        ),
    ),
    "generate_llama": Suite(
        "a LLaMA writes with its cache, batch 1",
        {"small": replace(SMALL, length=288)},
        (DECODING,),
        side_by_side(
            LLAMA,
            transformers=peers.llama,
            x_transformers=peers.x_llama,
            litgpt=peers.lit_llama,
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
