"""Prompts a trained model with text: continues it, fills its masks or its gaps, shows a sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.errors import ZooError
from zoo.generation import decoding
from zoo.objectives import MASK_TOKEN
from zoo.registry import build

SAMPLE = 300  # tokens, at most


class Prompter(ABC):
    """A trained model with the tokenizer and the objective that turn text into its input."""

    def __init__(self, config: Mapping[str, Any], model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.objective = build(
            "objective", config["objective"], tokenizer, config["loader"]["length"]
        )
        self.max_tokens: int = model.limit or config["arch"]["length"]

    @abstractmethod
    def answer(self, prompt: str, **sampling: Any) -> str:
        """The prompt with what the model adds to it; `sampling` as in `_write`."""

    @abstractmethod
    def sample(self, ids: np.ndarray, seed: int = 0) -> str:
        """An example of the model's output, where needed for these tokens of held-out text."""

    def _write(
        self,
        start: Sequence[int],
        end: int,
        source: Sequence[int] | None = None,
        *,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int | None = 50,
        seed: int = 0,
    ) -> list[int]:
        """The ids that continue `start`, at most `tokens`; the same seed gives the same ids."""
        written = decoding.generate(
            self.model,
            self._row(start),
            tokens,
            temperature=temperature,
            top_k=top_k,
            end=end,
            seed=seed,
            source=None if source is None else self._row(source),
        )
        return written[0].tolist()

    def _row(self, ids: Sequence[int] | np.ndarray) -> Tensor:
        device = next(self.model.parameters()).device
        return torch.as_tensor(ids, dtype=torch.long, device=device)[None]


class TextGenerator(Prompter):
    """A decoder that continues a text."""

    def generate(self, prompt: str = "", **sampling: Any) -> str:
        """The continuation of a prompt, which starts a document."""
        eot = self.tokenizer.eot
        written = self._write([eot, *self.tokenizer.encode(prompt)], eot, **sampling)
        return self.tokenizer.decode([token for token in written if token != eot])

    def answer(self, prompt: str, **sampling: Any) -> str:
        return prompt + self.generate(prompt, **sampling)

    def sample(self, ids: np.ndarray, seed: int = 0) -> str:
        return self.generate(tokens=min(SAMPLE, self.max_tokens - 1), seed=seed)


class MaskFiller(Prompter):
    """An encoder that predicts masked tokens."""

    def fill_mask(self, text: str, *, top: int = 5) -> list[list[tuple[str, float]]]:
        """The likeliest tokens at each [MASK] of a text, with their probabilities.

        A mask is one token: with tokenizer=byte, one byte. Raises ZooError for no mask.
        """
        parts = [self.tokenizer.encode(part) for part in text.split(MASK_TOKEN)]
        ids = self.objective.encode_prompt(parts)
        places = np.flatnonzero(ids == self.objective.mask)
        if not len(places):
            raise ZooError(
                f"this model fills masks: write {MASK_TOKEN} in the prompt, once for each token"
                " that is missing"
            )
        likeliest = self._probabilities(self._row(ids), places).topk(min(top, self.tokenizer.vocab))
        return [
            [(self.tokenizer.decode([token]), value) for token, value in zip(*mask, strict=True)]
            for mask in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
        ]

    def answer(self, prompt: str, **sampling: Any) -> str:
        """The prompt with its masks filled, then the likeliest tokens at each mask."""
        masks = self.fill_mask(prompt)
        tokens = [likeliest[0][0] for likeliest in masks]
        lines = [_interleaved(prompt.split(MASK_TOKEN), tokens), ""]
        for number, likeliest in enumerate(masks, 1):
            shares = ", ".join(f"{token!r} {value:.1%}" for token, value in likeliest)
            lines.append(f"mask {number}: {shares}")
        return "\n".join(lines)

    def sample(self, ids: np.ndarray, seed: int = 0) -> str:
        """Held-out text, each masked token replaced by the model's guess, in guillemets."""
        length = min(self.max_tokens, len(ids), SAMPLE)
        text = ids[: min(len(ids), SAMPLE) // length * length].astype(np.int64)
        rows = torch.as_tensor(text).view(-1, length)
        batch = {"tokens": rows, "labels": rows, "indices": torch.arange(len(rows))}
        masked = self.objective.prepare(batch, seed)
        places = masked["places"].numpy()
        guesses = self._probabilities(masked["tokens"], places).argmax(-1).tolist()
        shown, start = "", 0
        for place, guess in zip(places.tolist(), guesses, strict=True):
            known, token = text[start:place], self.tokenizer.decode([guess])
            shown += f"{self.tokenizer.decode(known)}«{token}»"
            start = place + 1
        shown += self.tokenizer.decode(text[start:])
        right = (text[places] == guesses).sum()
        return f"{shown}\n({right} of the {len(guesses)} masked tokens are predicted correctly)"

    def _probabilities(self, tokens: Tensor, places: np.ndarray) -> Tensor:
        at = self._row(places)[0]
        return decoding.at_places(self.model, tokens.to(at.device), at, self.tokenizer.vocab)


class GapFiller(Prompter):
    """An encoder-decoder that fills the gaps of a text, or continues it, by its objective."""

    def generate(self, prompt: str = "", **sampling: Any) -> str:
        """The prompt with each [MASK] replaced by any number of tokens, or else continued."""
        parts = [self.tokenizer.encode(part) for part in prompt.split(MASK_TOKEN)]
        return self._joined(parts, self._fills(parts, **sampling))

    def answer(self, prompt: str, **sampling: Any) -> str:
        return self.generate(prompt, **sampling)

    def sample(self, ids: np.ndarray, seed: int = 0) -> str:
        """Held-out text, each gap filled by the model, in guillemets."""
        parts, missing = self.objective.example(ids[: min(SAMPLE, self.max_tokens) - 2])
        tokens = min(60, self.max_tokens - 2)
        fills = self._fills(parts, tokens=tokens, temperature=0.0, top_k=None, seed=seed)
        shown = self._joined(parts, [f"«{fill}»" for fill in fills])
        return f"{shown}\n(hidden was «{self.tokenizer.decode(missing)}»)"

    def _fills(self, parts: Sequence[np.ndarray], **sampling: Any) -> list[str]:
        source, start, end = self.objective.encode_prompt(parts)
        written = self._write(start, end, source, **sampling)
        fills = self.objective.parse_output([*start, *written])
        return [self.tokenizer.decode(fill) for fill in fills[: max(len(parts) - 1, 1)]]

    def _joined(self, parts: Sequence[np.ndarray], fills: Sequence[str]) -> str:
        return _interleaved([self.tokenizer.decode(part) for part in parts], fills)


def _interleaved(parts: Sequence[str], fills: Sequence[str]) -> str:
    """A text whose parts alternate with what fills the gaps between them."""
    return "".join(part + fill for part, fill in zip_longest(parts, fills, fillvalue=""))


FAMILIES: dict[str, type[Prompter]] = {
    "decoder": TextGenerator,
    "encoder": MaskFiller,
    "encoder_decoder": GapFiller,
}


def prompter(config: Mapping[str, Any], model: Any, tokenizer: Any) -> Prompter:
    """How to prompt a model, by its family."""
    return FAMILIES[model.family](config, model, tokenizer)
