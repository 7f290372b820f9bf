"""Sequence to sequence, for encoder-decoders: predict each block's second half from its first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge, Lt

from zoo.errors import ZooError
from zoo.objectives.base import IGNORE, MASK_TOKEN, EncoderDecoderObjective
from zoo.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from zoo.data.tokenizers import Tokenizer


@register("objective", "seq2seq")
class Seq2Seq(EncoderDecoderObjective):
    """Sequence to sequence: the second half of each block (Sutskever 2014, Vaswani 2017).

    `smoothing` spreads that fraction of a label's weight over the whole vocabulary (label
    smoothing, Szegedy 2016).
    """

    loss_scope = "the second half of each block, given the first"
    has_unigram_baseline = True
    labelled_fraction = 0.5

    def __init__(
        self, tokenizer: Tokenizer, length: int, *, smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0
    ) -> None:
        super().__init__(tokenizer, length)
        if length < 2:
            raise ZooError(
                "objective=seq2seq halves its blocks: loader.length must be at least 2, not"
                f" {length}"
            )
        self.smoothing = smoothing

    def prepare(self, batch: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Halve a batch: tokens (B, T/2), decoder_tokens and labels (B, T - T/2).

        padding_mask (B, T/2) is there where there is padding.
        """
        tokens, not_padding = batch["tokens"].numpy(), batch["labels"].numpy() != IGNORE
        half = self.length // 2
        labels = np.where(not_padding, tokens, IGNORE)[:, half:]
        return self._batch(tokens[:, :half], labels, not_padding[:, :half])

    def example(self, ids: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        half = min(len(ids), self.length) // 2
        return [ids[:half]], ids[half : 2 * half]

    def encode_prompt(self, parts: Sequence[np.ndarray]) -> tuple[list[int], list[int], int]:
        if len(parts) > 1:
            raise ZooError(
                "this model was trained with objective=seq2seq: it continues a text and fills no"
                f" {MASK_TOKEN}"
            )
        return [self.eot, *parts[0]], [self.start], self.eot

    def parse_output(self, written: Sequence[int]) -> list[list[int]]:
        return [[token for token in written if token < self.vocab and token != self.eot]]
