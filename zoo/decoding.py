"""Generation with a KV cache."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from zoo.context import Cache
from zoo.registry import ZooError


@torch.inference_mode()
def generate(model: Any, tokens: Tensor, new: int, *, temperature: float = 1.0, top_k: int | None = None,
             end: int | None = None, padding_mask: Tensor | None = None, seed: int = 0) -> Tensor:
    """tokens (B, Q) -> (B, up to new): what the model writes after them, until every row has written `end`.

    temperature 0 takes the likeliest token; top_k draws from the k likeliest only; padding_mask (B, Q) is True where there
    is a token (pad on the left). After its `end`, a row holds `end`. Raises ZooError where prompt and continuation are
    longer than the model can place.
    """
    if not 0 <= temperature < math.inf or (top_k is not None and top_k < 1) or new < 0 or not 0 <= seed < 2**63:
        raise ZooError("generation needs a finite temperature >= 0, top_k >= 1 (or null), tokens >= 0 and 0 <= seed < 2^63")
    total, limit = tokens.shape[1] + new, model.limit
    if limit is not None and total > limit:
        room, keep = limit - tokens.shape[1], max(limit - new, limit // 2)
        shorter = "" if room > 0 else f"shorten the prompt to {keep} tokens and "
        raise ZooError(f"{tokens.shape[1]} tokens of prompt and {new} new ones are more than the {limit} that this model's"
                       f" position knows; {shorter}ask for at most {room if room > 0 else limit - keep}")
    training = model.training
    model.eval()
    draw = torch.Generator(tokens.device).manual_seed(seed)
    cache, written, ended = Cache(total), [], torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for _ in range(new):
        logits = model.logits(model.hidden(tokens, padding_mask, cache=cache)[:, -1]).float()
        tokens, padding_mask = _choose(logits, temperature, top_k, draw), None
        if end is not None:
            tokens = tokens.masked_fill(ended[:, None], end)
            ended |= tokens[:, 0] == end
        written.append(tokens)
        if end is not None and ended.all():
            break
    model.train(training)
    return torch.cat(written, 1) if written else tokens[:, :0]


def _choose(logits: Tensor, temperature: float, top_k: int | None, draw: torch.Generator) -> Tensor:
    """logits (B, vocab) -> the next token (B, 1)."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    below = logits - logits.amax(-1, keepdim=True)  # else a tiny temperature makes infinities, and 0 in float32 divides
    return torch.multinomial((below / max(temperature, 1e-30)).softmax(-1), 1, generator=draw)


def continue_text(model: Any, tokenizer: Any, prompt: str, new: int, temperature: float, top_k: int | None,
                  seed: int) -> str:
    """The text that the model writes after a prompt, which starts a document."""
    device = next(model.parameters()).device
    tokens = torch.tensor([[tokenizer.eot, *tokenizer.encode(prompt)]], device=device)
    written = generate(model, tokens, new, temperature=temperature, top_k=top_k, end=tokenizer.eot, seed=seed)
    return tokenizer.decode([token for token in written[0].tolist() if token != tokenizer.eot])
