"""What is learned: an objective prepares a batch, and turns a model and that batch into a loss.

Wiring: the tokenizer (of which `vocab` and `eot` are read) and the length of a block. `prepare` works where the data is
loaded, in numpy, so that neither composing nor a loading process needs torch's half of this file.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.errors import ZooError
from zoo.metrics import EVALUATED
from zoo.registry import build, entries, register
from zoo.utils.seeding import derive

if TYPE_CHECKING:
    from torch import Tensor

IGNORE = -100  # a place with no label
MARK = "[MASK]"  # a gap in a prompt
START = "<|start|>"  # which no text has: a decoder that reads a memory starts with it
MEASURED = tuple(metric.name for metric in EVALUATED)  # by an evaluation
GIVEN = (
    "tokens",
    "decoder_tokens",
    "padding_mask",
    "positions",
    "documents",
    "places",
)  # of a batch, to the model


class Objective:
    """What the objectives share: the cross-entropy of the labels, in nats, summed over the labelled places.

    A sum, not a mean, so that micro-batches, ranks and a partial last batch weigh by their tokens.
    """

    serves = "decoder"  # the family of models
    extra = 0  # the ids it needs beyond the tokenizer's
    over: str | None = (
        None  # what the loss of an evaluation is over, where that is not the whole text
    )
    of_text = False  # whether its labels come as often as the text's tokens, so that to know how often is worth their entropy
    smoothing = 0.0
    pads = False  # whether what it prepares may have padding that a model must not read
    share = 1.0  # of the tokens that the model reads, how many are labelled: auxiliary losses are over all that it reads

    def __init__(self, tokenizer: Any, length: int) -> None:
        self.vocab, self.eot, self.length = tokenizer.vocab, tokenizer.eot, length

    @property
    def judge(self) -> Objective:
        """The objective that prepares the text of an evaluation: the same, where none of its options says otherwise."""
        return self

    @property
    def named(self) -> dict[str, int]:
        """The ids that it needs beyond the tokenizer's, by the names that an exported tokenizer has for them."""
        return {}

    def prepare(self, batch: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """The batch to learn from. tokens and labels (B, T) as in zoo.data.dataset.Blocks, rows (B,) the indices of the blocks.

        What is drawn for a row depends on `seed` and its index alone: not on the rows beside it, the process or the resuming.
        """
        return dict(batch)

    def __call__(
        self, model: Any, batch: Mapping[str, Tensor], trace: Any = None
    ) -> tuple[Tensor, Tensor]:
        """The sum of the losses and the number of labelled tokens; the model writes into the trace where one is given."""
        from zoo.objectives import loss

        labels = self._labels(batch)
        nats = self.through(
            model,
            batch,
            partial(loss.summed, labels=labels, ignore=IGNORE, smoothing=self.smoothing),
            trace,
        )
        return nats, (labels != IGNORE).sum()

    def evaluate(self, model: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Of each place that the head was asked for (N,): unsmoothed nats, whether it is the likeliest token, its label."""
        from zoo.objectives import loss

        labels = self._labels(batch)
        return *self.through(
            model, batch, partial(loss.measured, labels=labels, ignore=IGNORE)
        ), labels

    def through(self, model: Any, batch: Mapping[str, Tensor], what: Any, trace: Any = None) -> Any:
        """What a function makes of the hidden states wherever a logit is asked for, and of the head (zoo.objectives.loss)."""
        given: dict[str, Any] = {name: batch[name] for name in GIVEN if name in batch}
        return model(**given, read=what, **({} if trace is None else {"trace": trace}))

    @staticmethod
    def _labels(batch: Mapping[str, Tensor]) -> Tensor:
        labels = batch["labels"].flatten()
        return labels[batch["places"]] if "places" in batch else labels


@register("objective", "clm")
class CausalLM(Objective):
    """Causal language modelling: the cross-entropy of each next token (GPT, Radford 2018), in nats."""

    of_text = True


@register("objective", "mlm")
class MaskedLM(Objective):
    """Masked language modelling: hidden tokens from both sides (BERT, Devlin 2018).

    Each token but end-of-text is chosen with probability `rate`; of the chosen, a share of `mask_share` is shown as a mask
    and one of `random_share` as another token, and the others stay as they are. `eval_rate` takes the place of `rate` in
    evaluations, so that models which learned at several rates are judged at one.
    """

    serves, of_text, pads = "encoder", True, True
    extra = 1  # the mask

    def __init__(
        self,
        tokenizer: Any,
        length: int,
        *,
        rate: float = 0.15,
        mask_share: float = 0.8,
        random_share: float = 0.1,
        eval_rate: float | None = None,
    ) -> None:
        super().__init__(tokenizer, length)
        for name, value in (("rate", rate), ("eval_rate", eval_rate)):
            if value is not None and not 0 < value <= 1:
                raise ZooError(f"objective.{name} must be above 0 and at most 1, not {value}")
        if min(mask_share, random_share) < 0 or mask_share + random_share > 1:
            raise ZooError(
                f"objective.mask_share={mask_share} and objective.random_share={random_share} must be shares of 1"
            )
        self.mask_share, self.random_share = mask_share, random_share
        self.rate = self.share = rate
        self.eval_rate = rate if eval_rate is None else eval_rate
        self.over = (
            f"the hidden tokens alone, {self.eval_rate:.3g} of the text, seen from both sides"
        )
        self.mask = self.vocab

    @property
    def named(self) -> dict[str, int]:
        return {MARK: self.mask}

    @property
    def judge(self) -> Objective:
        judge = copy.copy(self)
        judge.rate = self.eval_rate
        return judge

    def prepare(self, batch: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """labels (B, T) are IGNORE but where chosen; places (N,) are those, of the B·T; padding_mask where there is padding."""
        tokens, real = batch["tokens"].numpy(), batch["labels"].numpy() != IGNORE
        drawn = np.stack(
            [source.random((3, tokens.shape[1])) for source in streams(batch, seed)], 1
        )  # (3, B, T)
        chosen = (drawn[0] < self.rate) & real & (tokens != self.eot)
        others = (drawn[2] * (self.vocab - 1)).astype(np.int64)
        others += others >= self.eot
        shown = np.where(drawn[1] < self.mask_share + self.random_share, others, tokens)
        shown = np.where(drawn[1] < self.mask_share, self.mask, shown)
        return _tensors(
            tokens=np.where(chosen, shown, tokens),
            labels=np.where(chosen, tokens, IGNORE),
            places=np.flatnonzero(chosen),
            padding_mask=real,
        ) | {name: batch[name] for name in ("positions", "documents") if name in batch}

    def ask(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The tokens of a document with a mask between its parts."""
        asked = [self.eot, *parts[0]]
        for part in parts[1:]:
            asked += [self.mask, *part]
        return np.array(asked)


class Sequences(Objective):
    """What the objectives of an encoder-decoder share: the decoder starts with a token of its own, and reads its labels."""

    serves, pads = "encoder_decoder", True
    extra = 1  # the start

    def __init__(self, tokenizer: Any, length: int) -> None:
        super().__init__(tokenizer, length)
        self.start = self.vocab

    @property
    def named(self) -> dict[str, int]:
        return {START: self.start}

    def _batch(self, tokens: np.ndarray, labels: np.ndarray, real: np.ndarray) -> dict[str, Tensor]:
        """tokens (B, M), of which some are real, and labels (B, Q)."""
        before = np.where(labels == IGNORE, self.eot, labels)[:, :-1]
        decoder_tokens = np.pad(before, ((0, 0), (1, 0)), constant_values=self.start)
        return _tensors(
            tokens=tokens, decoder_tokens=decoder_tokens, labels=labels, padding_mask=real
        )

    def example(self, ids: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """A text as parts to ask about, and what is missing from it."""
        raise NotImplementedError

    def ask(self, parts: Sequence[np.ndarray]) -> tuple[list[int], list[int], int]:
        """Of a text with gaps between its parts: the encoder's tokens, the decoder's first ones, and that at which it ends."""
        raise NotImplementedError

    def read(self, written: Sequence[int]) -> list[list[int]]:
        """What a decoder that was asked so has written into each gap, as ids of the tokenizer."""
        raise NotImplementedError


@register("objective", "span")
class SpanCorruption(Sequences):
    """Span corruption: the decoder writes the spans that the encoder sees a sentinel for (T5, Raffel 2019).

    `density` of a block's tokens are hidden in spans of `mean_span` tokens on average; how many is fixed, so that every block
    makes inputs and targets of one length. Targets are a sentinel and its span in reading order, then one more sentinel.
    """

    def __init__(
        self, tokenizer: Any, length: int, *, density: float = 0.15, mean_span: float = 3.0
    ) -> None:
        super().__init__(tokenizer, length)
        if not 0 < density < 1 or mean_span < 1:
            raise ZooError(
                f"objective.density={density} must be between 0 and 1, objective.mean_span={mean_span} at least 1"
            )
        self.density, self.mean_span = density, mean_span
        self.over = f"the hidden spans and their sentinels, {density:.3g} of the text in spans of about {mean_span:.3g} tokens"
        noise, spans = self.hidden(length)
        self.inputs, self.targets, self.spans = length - noise + spans, noise + spans + 1, spans
        if not spans or self.targets > length:
            raise ZooError(
                f"objective.density={density} leaves no room in blocks of loader.length={length}, which would have"
                f" {self.targets} targets: choose a lower density, a longer objective.mean_span or longer blocks"
            )
        self.share = self.targets / (self.inputs + self.targets)
        self.sentinel = self.start + 1  # the first of them
        self.extra = 1 + spans + 1

    @property
    def named(self) -> dict[str, int]:
        """The sentinels go by T5's names."""
        return super().named | {
            f"<extra_id_{number}>": self.sentinel + number for number in range(self.spans + 1)
        }

    def hidden(self, length: int) -> tuple[int, int]:
        """How many tokens of so many are hidden, and in how many spans."""
        noise = min(max(round(length * self.density), 1), length - 1)
        return noise, min(max(round(noise / self.mean_span), 1), noise, length - noise)

    def noise(self, length: int, source: np.random.Generator) -> np.ndarray:
        """Which of so many tokens are hidden: a span that is seen, one that is hidden, and so on, each of random length."""
        noise, spans = self.hidden(length)
        if not spans:
            return np.zeros(length, dtype=bool)
        lengths = np.stack(
            [_cut(length - noise, spans, source), _cut(noise, spans, source)], 1
        ).ravel()
        return np.repeat(np.tile([False, True], spans), lengths)

    def corrupt(self, ids: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of a text of which some places are hidden."""
        begins = noise & ~np.pad(noise, (1, 0))[:-1]
        sentinels = self.sentinel + np.arange(begins.sum() + 1)
        inputs = ids.copy()
        inputs[begins] = sentinels[:-1]
        targets = np.insert(ids[noise], np.flatnonzero(begins[noise]), sentinels[:-1])
        return inputs[~noise | begins], np.append(targets, sentinels[-1])

    def prepare(self, batch: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """tokens (B, inputs), decoder_tokens and labels (B, targets); padding_mask (B, inputs) where there is padding."""
        real = batch["labels"].numpy() != IGNORE
        inputs = np.full((len(real), self.inputs), -1)
        labels = np.full((len(real), self.targets), IGNORE)
        for row, source in enumerate(streams(batch, seed)):
            ids = batch["tokens"].numpy()[row, real[row]]
            seen, hidden = self.corrupt(ids, self.noise(len(ids), source))
            inputs[row, : len(seen)], labels[row, : len(hidden)] = seen, hidden
        return self._batch(np.where(inputs < 0, self.eot, inputs), labels, inputs >= 0)

    def example(self, ids: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        middle, span = len(ids) // 2, round(self.mean_span)
        return [ids[:middle], ids[middle + span :]], ids[middle : middle + span]

    def ask(self, parts: Sequence[np.ndarray]) -> tuple[list[int], list[int], int]:
        gaps = max(len(parts) - 1, 1)  # without one, the end of the text
        if gaps > self.spans:
            raise ZooError(f"this model has sentinels for {self.spans} gaps, not for {gaps}")
        source = [self.eot, *parts[0]]
        for number in range(gaps):
            source += [
                self.sentinel + number,
                *(parts[number + 1] if number + 1 < len(parts) else []),
            ]
        return source, [self.start, self.sentinel], self.sentinel + gaps

    def read(self, written: Sequence[int]) -> list[list[int]]:
        spans: list[list[int]] = []
        for token in written:
            if token >= self.sentinel:
                spans.append([])
            elif token < self.vocab and spans:
                spans[-1].append(token)
        return spans


@register("objective", "seq2seq")
class Seq2Seq(Sequences):
    """Sequence to sequence (Sutskever 2014, Vaswani 2017): of each block, the second half from the first.

    `smoothing` spreads that share of a label's weight over the whole vocabulary (label smoothing, Szegedy 2016).
    """

    over = "the second half of each block, given the first"
    of_text = True
    share = 0.5

    def __init__(self, tokenizer: Any, length: int, *, smoothing: float = 0.0) -> None:
        super().__init__(tokenizer, length)
        if not 0 <= smoothing < 1:
            raise ZooError(f"objective.smoothing must be from 0 to below 1, not {smoothing}")
        if length < 2:
            raise ZooError(
                f"objective=seq2seq halves its blocks: loader.length must be at least 2, not {length}"
            )
        self.smoothing = smoothing

    def prepare(self, batch: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """tokens (B, T/2), decoder_tokens and labels (B, T - T/2); padding_mask (B, T/2) where there is padding."""
        tokens, real, half = (
            batch["tokens"].numpy(),
            batch["labels"].numpy() != IGNORE,
            self.length // 2,
        )
        return self._batch(
            tokens[:, :half], np.where(real, tokens, IGNORE)[:, half:], real[:, :half]
        )

    def example(self, ids: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        half = min(len(ids), self.length) // 2
        return [ids[:half]], ids[half : 2 * half]

    def ask(self, parts: Sequence[np.ndarray]) -> tuple[list[int], list[int], int]:
        if len(parts) > 1:
            raise ZooError(
                "this model goes on with a text, and knows no mask in it: it was trained with objective=seq2seq"
            )
        return [self.eot, *parts[0]], [self.start], self.eot

    def read(self, written: Sequence[int]) -> list[list[int]]:
        return [[token for token in written if token < self.vocab and token != self.eot]]


def check(config: Mapping[str, Any], model: Any) -> None:
    """Raises ZooError where a model cannot serve its run's objective, saying what to choose instead."""
    from zoo.nn.mixer import refuse_ignored

    tokenizer, length, name = (
        build("tokenizer", config["tokenizer"]),
        config["loader"]["length"],
        config["objective"]["name"],
    )
    objective = build("objective", config["objective"], tokenizer, length)
    if model.family != objective.serves:
        others = sorted(entries("objective"))
        fit = [
            other
            for other in others
            if build("objective", other, tokenizer, 64).serves == model.family
        ]
        raise ZooError(
            f"objective={name} is learned by arch={objective.serves}, not by arch={config['arch']['name']}: choose"
            f" objective={' or '.join(fit)}, or arch={objective.serves}"
        )
    vocab = config["arch"]["vocab"]
    if model.head.width != vocab or not getattr(model.head, "of_tokens", True):
        raise ZooError(
            f"objective={name} needs a logit for each of {vocab} tokens, and head={config['head']['name']} gives"
            f" {model.head.width} other numbers: choose head=linear or head=transform"
        )
    if vocab < tokenizer.vocab + objective.extra:
        more = f" ids and the {objective.extra} more of objective={name}" if objective.extra else ""
        raise ZooError(
            f"arch.vocab={vocab} is smaller than the tokenizer's {tokenizer.vocab}{more}"
        )
    if (
        config["loader"]["eval_length"] not in (None, length)
        and objective.serves == "encoder_decoder"
    ):
        raise ZooError(
            f"objective={name} is made for blocks of one length: leave loader.eval_length out"
        )
    if config["loader"]["isolate"] and objective.serves == "encoder_decoder":
        raise ZooError(
            f"objective={name} cannot keep the documents of a block apart: choose loader.isolate=false"
        )
    asked = [
        what
        for what, wanted in (
            ("padding", objective.pads),
            ("documents", config["loader"]["isolate"]),
        )
        if wanted
    ]
    for stack in model.stacks:
        refuse_ignored(asked, stack.honoured)


def streams(batch: Mapping[str, Tensor], seed: int) -> list[np.random.Generator]:
    """A random stream for each row of a batch."""
    return [np.random.default_rng(derive(seed, row)) for row in batch["rows"].tolist()]


def _cut(items: int, parts: int, source: np.random.Generator) -> np.ndarray:
    """The lengths (parts,) of so many items cut into parts, none of them empty; every way to do it is as likely."""
    cuts = np.sort(source.permutation(items - 1)[: parts - 1]) + 1
    return np.diff(cuts, prepend=0, append=items)


def _tensors(**arrays: np.ndarray) -> dict[str, Tensor]:
    """A batch; its padding_mask is left out where it would hide nothing, since attention without a mask is faster."""
    import torch

    if arrays["padding_mask"].all():
        del arrays["padding_mask"]
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
