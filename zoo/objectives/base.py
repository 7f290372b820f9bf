"""Defines the contract of an objective, and causal language modelling, which is its plainest form.

Wiring: the tokenizer (of which `vocab` and `eot` are read) and the length of a block. `prepare`
runs in the data workers, in numpy; torch is imported only where it is needed, so that composing a
configuration does not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from zoo.metrics import EVALUATED
from zoo.registry import register
from zoo.utils.seeding import derive

if TYPE_CHECKING:
    from torch import Tensor, nn

    from zoo.context import Trace
    from zoo.data.tokenizers import Tokenizer

IGNORE = -100  # the label of a place that has none
MASK_TOKEN = "[MASK]"
START_TOKEN = "<|start|>"  # starts the decoder's sequence; no text has it
Result = TypeVar("Result")
EVAL_METRICS = tuple(metric.name for metric in EVALUATED)
MODEL_INPUTS = ("tokens", "decoder_tokens", "padding_mask", "positions", "documents", "places")


class Objective:
    """Computes the cross-entropy of a batch's labels, in nats, summed over the labelled places.

    A sum, not a mean, so that micro-batches, ranks and a partial last batch weigh by their tokens.
    """

    serves = "decoder"  # the family of models that it trains
    extra = 0  # how many ids it needs beyond the tokenizer's
    loss_scope: str | None = None  # what an evaluation's loss is over, where not the whole text
    # whether labels are distributed as the text's tokens, so that the unigram loss is comparable
    has_unigram_baseline = False
    smoothing = 0.0
    may_pad = False  # whether its batches may have padding that a model must not read
    labelled_fraction = 1.0  # of the tokens read; auxiliary losses are over all of these

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        self.vocab, self.eot, self.length = tokenizer.vocab, tokenizer.eot, length

    @property
    def eval_objective(self) -> Objective:
        """The objective that prepares evaluation batches: this one, unless options differ."""
        return self

    @property
    def special_tokens(self) -> dict[str, int]:
        """The ids beyond the tokenizer's, by their names in an exported tokenizer."""
        return {}

    def prepare(self, batch: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Turn a batch of zoo.data.dataset.Blocks into one to train on.

        What is drawn for a block depends on `seed` and the block's index in `indices` (B,) alone:
        not on the blocks beside it, the rank, or resuming.
        """
        return dict(batch)

    def __call__(
        self, model: nn.Module, batch: Mapping[str, Tensor], trace: Trace | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sum of the losses and the number of labelled tokens; the model fills in `trace`."""
        from zoo.objectives import loss

        labels = self._labels(batch)
        head_fn = partial(loss.summed_nats, labels=labels, ignore=IGNORE, smoothing=self.smoothing)
        return self.run_model(model, batch, head_fn, trace), (labels != IGNORE).sum()

    def evaluate(
        self, model: nn.Module, batch: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For each place with a logit (N,): unsmoothed nats, if the top token is right, label."""
        from zoo.objectives import loss

        labels = self._labels(batch)
        head_fn = partial(loss.nats_and_hits, labels=labels, ignore=IGNORE)
        nats, hits = self.run_model(model, batch, head_fn)
        return nats, hits, labels

    def run_model(
        self,
        model: nn.Module,
        batch: Mapping[str, Tensor],
        head_fn: Callable[[Tensor, nn.Module, Tensor], Result],
        trace: Trace | None = None,
    ) -> Result:
        """Run the model; return head_fn(hidden states where a logit is needed, head, embedding)."""
        inputs: dict[str, Any] = {name: batch[name] for name in MODEL_INPUTS if name in batch}
        if trace is not None:
            inputs["trace"] = trace
        result: Result = model(**inputs, head_fn=head_fn)
        return result

    @staticmethod
    def _labels(batch: Mapping[str, Tensor]) -> Tensor:
        labels = batch["labels"].flatten()
        return labels[batch["places"]] if "places" in batch else labels


@register("objective", "clm")
class CausalLM(Objective):
    """Causal language modelling: the cross-entropy of each next token (GPT, Radford 2018)."""

    has_unigram_baseline = True


class EncoderDecoderObjective(Objective):
    """Trains a decoder to write its labels: it starts with a token of its own, then reads them.

    A prompt is a text cut into parts, with a gap between each two of them.
    """

    serves, may_pad = "encoder_decoder", True
    extra = 1  # the start token

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        super().__init__(tokenizer, length)
        self.start = self.vocab

    @property
    def special_tokens(self) -> dict[str, int]:
        return {START_TOKEN: self.start}

    def _batch(
        self, tokens: np.ndarray, labels: np.ndarray, not_padding: np.ndarray
    ) -> dict[str, Tensor]:
        """A batch of tokens and not_padding (B, M), and labels (B, Q)."""
        shifted = np.where(labels == IGNORE, self.eot, labels)[:, :-1]
        decoder_tokens = np.pad(shifted, ((0, 0), (1, 0)), constant_values=self.start)
        return as_batch(
            tokens=tokens, decoder_tokens=decoder_tokens, labels=labels, padding_mask=not_padding
        )

    def example(self, ids: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Make a prompt out of a text: its parts, and the tokens that are missing from it."""
        raise NotImplementedError

    def encode_prompt(self, parts: Sequence[np.ndarray]) -> tuple[list[int], list[int], int]:
        """Encode a prompt: encoder tokens, first decoder tokens, and the token that ends it."""
        raise NotImplementedError

    def parse_output(self, written: Sequence[int]) -> list[list[int]]:
        """Split what a decoder wrote for a prompt into the tokenizer's ids for each gap."""
        raise NotImplementedError


def row_generators(batch: Mapping[str, Tensor], seed: int) -> list[np.random.Generator]:
    """A random generator for each block of a batch, keyed by its index."""
    return [np.random.default_rng(derive(seed, index)) for index in batch["indices"].tolist()]


def as_batch(**arrays: np.ndarray) -> dict[str, Tensor]:
    """Arrays as tensors; a padding_mask that hides nothing is left out, which is faster."""
    import torch

    if arrays["padding_mask"].all():
        del arrays["padding_mask"]
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
