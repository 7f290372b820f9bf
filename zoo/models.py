"""Whole models: a body that gives hidden states, and a head that turns those it is given into logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zoo import registry
from zoo.context import NoCache
from zoo.init import initialise
from zoo.registry import ZooError, register
from zoo.stack import Parts, Stack


@register("arch", "decoder")
class Decoder(nn.Module):
    """Decoder only: each token sees those before it (GPT, Radford 2018).

    `vocab` defaults to the tokenizer's; `length` is the sequence length trained on; `pattern` is a list of changes to the
    parts, repeated over the layers, as in `[{attn: {window: 128}}, {}]`.
    """

    def __init__(self, parts: Parts, *, dim: int = 128, layers: int = 4, heads: int = 4, length: int = 256,
                 vocab: int | None = None, dropout: float = 0.0, pattern: list[Any] = []) -> None:  # noqa: B006
        super().__init__()
        for name, value in {"dim": dim, "layers": layers, "heads": heads, "length": length}.items():
            if value < 1:
                raise ZooError(f"arch.{name} must be at least 1, not {value}")
        if vocab is None:
            raise ZooError("arch.vocab is not known: give it, or choose a tokenizer")
        if not 0 <= dropout < 1:
            raise ZooError(f"arch.dropout must be from 0 to below 1, not {dropout}")
        layered = {group: parts[group] for group in ("norm", "residual", "block", "pos", "attn", "ffn")}
        self.embed = registry.build("embed", parts["embed"], vocab, dim)
        self.stack = Stack(layered, dim, layers, heads, length, dropout, pattern, causal=True)
        self.head = registry.build("head", parts["head"], dim, vocab)

    def hidden(self, tokens: Tensor, padding_mask: Tensor | None = None, *, positions: Tensor | None = None,
               documents: Tensor | None = None, cache: NoCache | None = None) -> Tensor:
        """tokens (B, Q) -> hidden states (B, Q, dim), after the closing norm."""
        return self.stack(self.embed(tokens), padding_mask, positions, documents, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., dim) -> (..., vocab)."""
        return self.head(hidden, self.embed.weight)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None, *, positions: Tensor | None = None,
                documents: Tensor | None = None, cache: NoCache | None = None) -> Tensor:
        """tokens (B, Q) -> logits (B, Q, vocab).

        padding_mask (B, Q) is True where there is a token, on either side; positions (B, Q) and documents (B, Q) place and
        separate packed documents; a cache (zoo.context.Cache) holds the tokens before these.
        """
        return self.logits(self.hidden(tokens, padding_mask, positions=positions, documents=documents, cache=cache))


def build(config: Mapping[str, Any], *, seed: int = 0, device: str = "cpu") -> Decoder:
    """The configured model, each parameter drawn from its own stream of `seed`; on "meta" it costs no memory.

    Raises ZooError for a combination that has no meaning.
    """
    with torch.device("meta"):
        model: Decoder = registry.build("arch", config["arch"], config)
    if device != "meta":
        model = model.to_empty(device=device)
        initialise(model, config["init"], seed)
    return model
