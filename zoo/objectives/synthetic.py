"""Diagnostic tasks: sequences drawn anew for each block, of which a part can be known by who has the mechanism asked for.

They are objectives, as what is learned is theirs alone: of the text only the number of blocks is used. val/accuracy is over the
tokens that can be known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.errors import ZooError
from zoo.objectives import IGNORE, Objective, streams
from zoo.registry import register

if TYPE_CHECKING:
    from torch import Tensor


class SyntheticTask(Objective):
    """What the tasks share: `symbols` different tokens, drawn from a stream of the block's own."""

    def __init__(self, tokenizer: Any, length: int, symbols: int) -> None:
        super().__init__(tokenizer, length)
        if not 2 <= symbols < tokenizer.vocab:
            raise ZooError(
                f"objective.symbols={symbols} must be from 2 to below the tokenizer's {tokenizer.vocab}"
            )
        if length < 8:
            raise ZooError(
                f"a task needs blocks of at least 8 tokens: loader.length={length} is too short"
            )
        self.symbols = symbols
        self.over = f"the tokens that can be known, of the {symbols} symbols of {type(self).__name__.lower()}"

    def draw(self, source: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        """So many tokens, and which of them can be known from those before."""
        raise NotImplementedError

    def prepare(self, batch: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """tokens and labels (B, T); labels are IGNORE but for the tokens that can be known."""
        import torch

        rows = [self.draw(source, batch["tokens"].shape[1] + 1) for source in streams(batch, seed)]
        tokens, known = (np.stack(part) for part in zip(*rows, strict=True))
        labels = np.where(known, tokens, IGNORE)[:, 1:]
        return {
            "tokens": torch.from_numpy(tokens[:, :-1].copy()),
            "labels": torch.from_numpy(labels.copy()),
        }


@register("objective", "induction")
class Induction(SyntheticTask):
    """A random segment again and again, ... A B ... A -> B (Olsson 2022): two layers of attention find it, one does not.

    The segment is a quarter to half of the block, so that no fixed distance tells where to look.
    """

    def __init__(self, tokenizer: Any, length: int, *, symbols: int = 64) -> None:
        super().__init__(tokenizer, length, symbols)

    def draw(self, source: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        segment = int(source.integers(length // 4, length // 2 + 1))
        tokens = np.resize(source.integers(0, self.symbols, segment), length)
        return tokens, np.arange(length) > segment  # the token before it has been seen before


@register("objective", "copy")
class Copy(SyntheticTask):
    """A random string, a mark, and the string again (Graves 2014; Jelassi 2024). A fixed state must hold it whole."""

    def __init__(self, tokenizer: Any, length: int, *, symbols: int = 64) -> None:
        super().__init__(tokenizer, length, symbols)

    def draw(self, source: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        half = (length - 1) // 2
        string = source.integers(0, self.symbols, half)
        tokens = np.concatenate([string, [self.symbols], string, string[: length - 1 - 2 * half]])
        return tokens, (np.arange(length) > half) & (np.arange(length) <= 2 * half)
