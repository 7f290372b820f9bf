"""Synthetic tasks: sequences drawn for each block, partly predictable from what came before.

A model predicts that part only if it has the mechanism that the task tests, and val/accuracy is
over that part alone. The tasks are objectives that use only the number of blocks of the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge

from zoo.errors import ZooError
from zoo.objectives.base import IGNORE, Objective, row_generators
from zoo.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from zoo.data.tokenizers import Tokenizer


class SyntheticTask(Objective):
    """Draws the sequences of a task over `symbols` different tokens, keyed by the block's index."""

    def __init__(self, tokenizer: Tokenizer, length: int, symbols: int) -> None:
        super().__init__(tokenizer, length)
        if symbols >= tokenizer.vocab:
            raise ZooError(
                f"objective.symbols={symbols} must be below the tokenizer's"
                f" vocabulary of {tokenizer.vocab}"
            )
        if length < 8:
            raise ZooError(
                f"a task needs blocks of at least 8 tokens: loader.length={length} is too short"
            )
        self.symbols = symbols
        task = type(self).__name__.lower()
        self.loss_scope = f"the tokens that can be known, of the {symbols} symbols of {task}"

    def draw(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw the tokens of a sequence, and which of them follow from those before."""
        raise NotImplementedError

    def prepare(self, batch: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Draw a batch: tokens and labels (B, T), which are IGNORE but for predictable tokens."""
        import torch

        length = batch["tokens"].shape[1] + 1
        sequences, masks = [], []
        for generator in row_generators(batch, seed):
            sequence, predictable = self.draw(generator, length)
            sequences.append(sequence)
            masks.append(predictable)
        tokens = np.stack(sequences)
        labels = np.where(np.stack(masks), tokens, IGNORE)
        return {
            "tokens": torch.from_numpy(tokens[:, :-1].copy()),
            "labels": torch.from_numpy(labels[:, 1:].copy()),
        }


@register("objective", "induction")
class Induction(SyntheticTask):
    """Repeat a random segment, ... A B ... A -> B (Olsson 2022): needs two attention layers.

    The segment is a quarter to half of the block, so that no fixed distance tells where to look.
    """

    def __init__(
        self, tokenizer: Tokenizer, length: int, *, symbols: Annotated[int, Ge(2)] = 64
    ) -> None:
        super().__init__(tokenizer, length, symbols)

    def draw(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        segment = int(generator.integers(length // 4, length // 2 + 1))
        tokens = np.resize(generator.integers(0, self.symbols, segment), length)
        return tokens, np.arange(length) > segment  # the token before it has been seen before


@register("objective", "copy")
class Copy(SyntheticTask):
    """Copy a random string after a delimiter (Graves 2014; Jelassi 2024).

    A fixed state must hold the whole string.
    """

    def __init__(
        self, tokenizer: Tokenizer, length: int, *, symbols: Annotated[int, Ge(2)] = 64
    ) -> None:
        super().__init__(tokenizer, length, symbols)

    def draw(self, generator: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        half = (length - 1) // 2
        string = generator.integers(0, self.symbols, half)
        tokens = np.concatenate([string, [self.symbols], string, string[: length - 1 - 2 * half]])
        place = np.arange(length)
        return tokens, (place > half) & (place <= 2 * half)
