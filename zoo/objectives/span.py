"""Span corruption, for encoder-decoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt

from zoo.errors import ZooError
from zoo.objectives.base import IGNORE, EncoderDecoderObjective, row_generators
from zoo.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from zoo.data.tokenizers import Tokenizer


@register("objective", "span")
class SpanCorruption(EncoderDecoderObjective):
    """Span corruption: the decoder writes the spans that sentinels stand for (T5, Raffel 2019).

    `density` is the fraction of a block's tokens that are hidden, in spans of `mean_span` tokens on
    average; how many is fixed, so that inputs and targets have one length. Targets are a sentinel
    and its span in reading order, then one more sentinel.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        *,
        density: Annotated[float, Gt(0), Lt(1)] = 0.15,
        mean_span: Annotated[float, Ge(1)] = 3.0,
    ) -> None:
        super().__init__(tokenizer, length)
        self.density, self.mean_span = density, mean_span
        self.loss_scope = (
            f"the hidden spans and their sentinels, {density:.3g} of the text"
            f" in spans of about {mean_span:.3g} tokens"
        )
        hidden, spans = self.span_counts(length)
        self.inputs, self.targets, self.spans = length - hidden + spans, hidden + spans + 1, spans
        if not spans or self.targets > length:
            raise ZooError(
                f"objective.density={density} leaves no room in blocks of loader.length={length},"
                f" which would have {self.targets} targets: choose a lower density, a longer"
                " objective.mean_span or longer blocks"
            )
        self.labelled_fraction = self.targets / (self.inputs + self.targets)
        self.sentinel = self.start + 1  # the first of them
        self.extra = 1 + spans + 1

    @property
    def special_tokens(self) -> dict[str, int]:
        """The start token, and the sentinels by T5's names."""
        sentinels = {f"<extra_id_{n}>": self.sentinel + n for n in range(self.spans + 1)}
        return super().special_tokens | sentinels

    def span_counts(self, length: int) -> tuple[int, int]:
        """How many tokens of a text of this length are hidden, and in how many spans."""
        hidden = min(max(round(length * self.density), 1), length - 1)
        return hidden, min(max(round(hidden / self.mean_span), 1), hidden, length - hidden)

    def noise_mask(self, length: int, generator: np.random.Generator) -> np.ndarray:
        """Draw which tokens are hidden: visible and hidden spans alternate, of random length."""
        hidden, spans = self.span_counts(length)
        if not spans:
            return np.zeros(length, dtype=bool)
        visible_lengths = random_partition(length - hidden, spans, generator)
        hidden_lengths = random_partition(hidden, spans, generator)
        lengths = np.stack([visible_lengths, hidden_lengths], 1).ravel()
        return np.repeat(np.tile([False, True], spans), lengths)

    def corrupt(self, ids: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The inputs and targets of a text whose masked tokens are given by a noise mask."""
        begins = noise & ~np.pad(noise, (1, 0))[:-1]
        sentinels = self.sentinel + np.arange(begins.sum() + 1)
        inputs = ids.copy()
        inputs[begins] = sentinels[:-1]
        targets = np.insert(ids[noise], np.flatnonzero(begins[noise]), sentinels[:-1])
        return inputs[~noise | begins], np.append(targets, sentinels[-1])

    def prepare(self, batch: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Corrupt a batch: tokens (B, inputs), decoder_tokens and labels (B, targets).

        padding_mask (B, inputs) is there where there is padding.
        """
        tokens, not_padding = batch["tokens"].numpy(), batch["labels"].numpy() != IGNORE
        inputs = np.full((len(tokens), self.inputs), -1)
        labels = np.full((len(tokens), self.targets), IGNORE)
        for row, generator in enumerate(row_generators(batch, seed)):
            ids = tokens[row, not_padding[row]]
            visible, targets = self.corrupt(ids, self.noise_mask(len(ids), generator))
            inputs[row, : len(visible)] = visible
            labels[row, : len(targets)] = targets
        return self._batch(np.where(inputs < 0, self.eot, inputs), labels, inputs >= 0)

    def example(self, ids: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        middle, span = len(ids) // 2, round(self.mean_span)
        return [ids[:middle], ids[middle + span :]], ids[middle : middle + span]

    def encode_prompt(self, parts: Sequence[np.ndarray]) -> tuple[list[int], list[int], int]:
        gaps = max(len(parts) - 1, 1)  # without one, the end of the text
        if gaps > self.spans:
            raise ZooError(f"this model has sentinels for {self.spans} gaps, not for {gaps}")
        source = [self.eot, *parts[0]]
        for gap in range(gaps):
            source.append(self.sentinel + gap)
            if gap + 1 < len(parts):
                source.extend(parts[gap + 1])
        return source, [self.start, self.sentinel], self.sentinel + gaps

    def parse_output(self, written: Sequence[int]) -> list[list[int]]:
        spans: list[list[int]] = []
        for token in written:
            if token >= self.sentinel:
                spans.append([])
            elif token < self.vocab and spans:
                spans[-1].append(token)
        return spans


def random_partition(items: int, parts: int, generator: np.random.Generator) -> np.ndarray:
    """Lengths (parts,) of items cut into non-empty parts, each way equally likely."""
    cuts = np.sort(generator.permutation(items - 1)[: parts - 1]) + 1
    return np.diff(cuts, prepend=0, append=items)
