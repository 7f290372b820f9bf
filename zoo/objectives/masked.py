"""Masked language modelling, for encoders."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from zoo.errors import ZooError
from zoo.objectives.base import IGNORE, MASK_TOKEN, Objective, as_batch, row_generators
from zoo.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from zoo.data.tokenizers import Tokenizer


@register("objective", "mlm")
class MaskedLM(Objective):
    """Masked language modelling: predict masked tokens from both sides (BERT, Devlin 2018).

    Each token but end-of-text is chosen with probability `rate`; of the chosen, a fraction
    `mask_share` is shown as a mask and a fraction `random_share` as another token, and the others
    stay as they are. `eval_rate` takes the place of `rate` in evaluations, so that models trained
    at several rates are evaluated at one.
    """

    serves, has_unigram_baseline, may_pad = "encoder", True, True
    extra = 1  # the mask

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        *,
        rate: Annotated[float, Gt(0), Le(1)] = 0.15,
        mask_share: Annotated[float, Ge(0), Le(1)] = 0.8,
        random_share: Annotated[float, Ge(0), Le(1)] = 0.1,
        eval_rate: Annotated[float, Gt(0), Le(1)] | None = None,
    ) -> None:
        super().__init__(tokenizer, length)
        if mask_share + random_share > 1:
            raise ZooError(
                f"objective.mask_share={mask_share} and objective.random_share={random_share} must"
                " add up to at most 1"
            )
        self.mask_share, self.random_share = mask_share, random_share
        self.rate = self.labelled_fraction = rate
        self.eval_rate = rate if eval_rate is None else eval_rate
        self.loss_scope = (
            f"the hidden tokens alone, {self.eval_rate:.3g} of the text, seen from both sides"
        )
        self.mask = self.vocab

    @property
    def special_tokens(self) -> dict[str, int]:
        return {MASK_TOKEN: self.mask}

    @property
    def eval_objective(self) -> Objective:
        evaluation = copy.copy(self)
        evaluation.rate = self.eval_rate
        return evaluation

    def prepare(self, batch: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Mask a batch.

        labels (B, T) are IGNORE but where a token was chosen; places (N,) are the indices of those
        in the B·T; padding_mask (B, T) is there where there is padding.
        """
        tokens, not_padding = batch["tokens"].numpy(), batch["labels"].numpy() != IGNORE
        generators = row_generators(batch, seed)
        draws = [generator.random((3, tokens.shape[1])) for generator in generators]
        choice, display, replacement = np.stack(draws, 1)  # (B, T) each
        chosen = (choice < self.rate) & not_padding & (tokens != self.eot)
        others = (replacement * (self.vocab - 1)).astype(np.int64)
        others += others >= self.eot
        shown = np.where(display < self.mask_share + self.random_share, others, tokens)
        shown = np.where(display < self.mask_share, self.mask, shown)
        prepared = as_batch(
            tokens=np.where(chosen, shown, tokens),
            labels=np.where(chosen, tokens, IGNORE),
            places=np.flatnonzero(chosen),
            padding_mask=not_padding,
        )
        return prepared | {
            name: batch[name] for name in ("positions", "documents") if name in batch
        }

    def encode_prompt(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The tokens of a document with a mask between its parts."""
        tokens = [self.eot, *parts[0]]
        for part in parts[1:]:
            tokens += [self.mask, *part]
        return np.array(tokens)
