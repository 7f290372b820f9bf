"""What a trained model is used for: generation with a KV cache, and the likeliest tokens at a mask."""

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

MANY = 100  # new tokens, for which it pays to turn the weights


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout and without gradients, and then as before."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


@contextmanager
def turned(model: Any) -> Iterator[None]:
    """The matrices by columns in memory, and then as before: a CPU multiplies a row by them in .7 of the time (benchmarks)."""
    plain = [
        weight for weight in model.parameters() if weight.ndim == 2 and type(weight.data) is Tensor
    ]
    try:
        with torch.inference_mode(False):
            for weight in plain:
                weight.data = weight.data.mT.contiguous().mT
        yield
    finally:
        with torch.inference_mode(False):
            for weight in plain:
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
    """tokens (B, Q) -> (B, up to new): what the model writes after them, until every row has written `end`.

    temperature 0 takes the likeliest token; top_k draws from the k likeliest only; padding_mask (B, Q) is True where there
    is a token (pad on the left). After its `end`, a row holds `end`. An encoder-decoder first reads a `source` (B, M), of which
    padding_mask (B, M) then is, and `tokens` are those that its decoder starts with. Raises ZooError where tokens and
    continuation are longer than the model can place.
    """
    if (
        not 0 <= temperature < math.inf
        or (top_k is not None and top_k < 1)
        or new < 0
        or not 0 <= seed < 2**63
    ):
        raise ZooError(
            "generation needs a finite temperature >= 0, top_k >= 1 (or null), tokens >= 0 and 0 <= seed < 2^63"
        )
    total, limit = tokens.shape[1] + new, model.limit
    if limit is not None and total > limit:
        room, keep = limit - tokens.shape[1], max(limit - new, limit // 2)
        shorter = "" if room > 0 else f"shorten the prompt to {keep} tokens and "
        raise ZooError(
            f"{tokens.shape[1]} tokens of prompt and {new} new ones are more than the {limit} that this model's"
            f" position knows; {shorter}ask for at most {room if room > 0 else limit - keep}"
        )
    draw = torch.Generator(tokens.device).manual_seed(seed)
    cache, written, ended = (
        Cache(total),
        [],
        torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device),
    )
    with turned(model) if tokens.is_cpu and new >= MANY else nullcontext(), evaluating(model):
        step, given = model.hidden, {"padding_mask": padding_mask}
        if source is not None:
            step, given = partial(model.decode, memory=model.encode(source, **given), **given), {}
        for _ in range(new):
            hidden = step(tokens, cache=cache, **given)
            tokens, given = (
                _choose(model.logits(hidden[:, -1]).float(), temperature, top_k, draw),
                {},
            )
            if end is not None:
                tokens = tokens.masked_fill(ended[:, None], end)
                ended |= tokens[:, 0] == end
            written.append(tokens)
            if end is not None and ended.all():
                break
    return torch.cat(written, 1) if written else tokens[:, :0]


def _choose(logits: Tensor, temperature: float, top_k: int | None, draw: torch.Generator) -> Tensor:
    """logits (B, vocab) -> the next token (B, 1)."""
    _refuse_not_finite(logits)
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    below = logits - logits.amax(
        -1, keepdim=True
    )  # else a tiny temperature makes infinities, and 0 in float32 divides
    return torch.multinomial((below / max(temperature, 1e-30)).softmax(-1), 1, generator=draw)


def at_places(model: Any, tokens: Tensor, places: Tensor, vocab: int) -> Tensor:
    """The probabilities (N, vocab) of the first `vocab` ids at these of the B·Q places (N,) of the tokens (B, Q)."""
    with evaluating(model):
        logits = model(tokens, places=places)[:, :vocab].float()
    _refuse_not_finite(logits)
    return logits.softmax(-1)


def _refuse_not_finite(logits: Tensor) -> None:
    """Raises ZooError where a row has NaN or infinity; the logit of a token that is ruled out may be minus infinity."""
    if not logits.amax(-1).isfinite().all():
        raise ZooError(
            "the model's logits are not finite: it has diverged, or computes in too few bits for this text"
        )
