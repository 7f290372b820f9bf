"""Decodes tokens with a KV cache, and gives the probabilities at single positions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.context import Cache
from zoo.errors import ZooError

MANY = 100  # new tokens from which on column-major weights pay


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch off dropout and gradients, and restore the model's mode at the end."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


@contextmanager
def column_major(model: Any) -> Iterator[None]:
    """Store the matrices by columns: a CPU then takes 0.7 of the time for one row (benchmarks)."""
    matrices = [
        weight for weight in model.parameters() if weight.ndim == 2 and type(weight.data) is Tensor
    ]
    try:
        with torch.inference_mode(False):
            for weight in matrices:
                weight.data = weight.data.mT.contiguous().mT
        yield
    finally:
        with torch.inference_mode(False):
            for weight in matrices:
                weight.data = weight.data.contiguous()


def generate(
    model: Any,
    tokens: Tensor,
    new: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    end: int | None = None,
    padding_mask: Tensor | None = None,
    seed: int = 0,
    source: Tensor | None = None,
) -> Tensor:
    """tokens (B, Q) -> (B, up to new): their continuation, until every row has produced `end`.

    temperature 0 takes the likeliest token; top_k samples from the k likeliest; padding_mask
    (B, Q) is True where there is a token (pad on the left). After its `end`, a row repeats `end`.
    An encoder-decoder reads a `source` (B, M), to which padding_mask (B, M) then belongs, and
    `tokens` start its decoder. Raises ZooError where the model has too few positions.
    """
    _check_options(new, temperature, top_k, seed)
    _check_length(tokens.shape[1], new, model.limit)
    generator = torch.Generator(tokens.device).manual_seed(seed)
    cache = Cache(tokens.shape[1] + new)
    ended = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    written: list[Tensor] = []
    layout = column_major(model) if tokens.is_cpu and new >= MANY else nullcontext()
    with layout, evaluating(model):
        if source is None:
            step, mask = model.hidden, {"padding_mask": padding_mask}
        else:
            memory = model.encode(source, padding_mask=padding_mask)
            step, mask = partial(model.decode, memory=memory, padding_mask=padding_mask), {}
        for _ in range(new):
            hidden = step(tokens, cache=cache, **mask)
            mask = {}  # the prompt alone is padded
            logits = model.logits(hidden[:, -1]).float()
            tokens = _choose(logits, temperature, top_k, generator)
            if end is not None:
                tokens = tokens.masked_fill(ended[:, None], end)
                ended |= tokens[:, 0] == end
            written.append(tokens)
            if end is not None and ended.all():
                break
    return torch.cat(written, 1) if written else tokens[:, :0]


def _check_options(new: int, temperature: float, top_k: int | None, seed: int) -> None:
    if (
        not 0 <= temperature < math.inf
        or (top_k is not None and top_k < 1)
        or new < 0
        or not 0 <= seed < 2**63
    ):
        raise ZooError(
            "generation needs a finite temperature >= 0, top_k >= 1 (or null), tokens >= 0 and"
            " 0 <= seed < 2^63"
        )


def _check_length(prompt: int, new: int, limit: int | None) -> None:
    if limit is None or prompt + new <= limit:
        return
    left, kept = limit - prompt, max(limit - new, limit // 2)
    advice = (
        f"ask for at most {left}"
        if left > 0
        else f"shorten the prompt to {kept} tokens and ask for at most {limit - kept}"
    )
    raise ZooError(
        f"{prompt} tokens of prompt and {new} new ones are more than the {limit} positions of"
        f" this model; {advice}"
    )


def _choose(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator
) -> Tensor:
    """logits (B, vocab) -> the next token (B, 1)."""
    _refuse_not_finite(logits)
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    # relative to the largest, as a tiny temperature would else give infinities; 0 would divide
    relative = logits - logits.amax(-1, keepdim=True)
    probabilities = (relative / max(temperature, 1e-30)).softmax(-1)
    return torch.multinomial(probabilities, 1, generator=generator)


def at_places(model: Any, tokens: Tensor, places: Tensor, vocab: int) -> Tensor:
    """The probabilities (N, vocab) of the first `vocab` ids at the places (N,) of B·Q tokens."""
    with evaluating(model):
        logits = model(tokens, places=places)[:, :vocab].float()
    _refuse_not_finite(logits)
    return logits.softmax(-1)


def _refuse_not_finite(logits: Tensor) -> None:
    """Raises ZooError where a row has NaN or infinity; -inf may rule a single token out."""
    if not logits.amax(-1).isfinite().all():
        raise ZooError(
            "the model's logits are not finite: it has diverged, or its dtype has too small a"
            " range for this text"
        )
