"""Model families: a body that gives hidden states, and a head that turns them into logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor, nn

from zoo import errors, registry
from zoo.context import Cache
from zoo.errors import ZooError
from zoo.models.init import initialise
from zoo.models.stack import Parts, Stack
from zoo.registry import Component, register
from zoo.utils import compat

HeadFn = Callable[[Tensor, nn.Module, Tensor], Any]  # of hidden states (N, dim), head, embedding
LAYERED = ("norm", "residual", "block", "pos", "attn", "ffn")


class Model(nn.Module):
    """Base of the families: the embedding, the head, and the numbers that they and the stacks
    are made with.
    """

    family = "decoder"  # which objectives it serves, and what it is used for
    # of start, end and padding, where the weights came from transformers
    token_ids: Mapping[str, Any] = {}
    # methods called beside forward; none calls another, since FSDP2 frees the weights at the end of
    # each
    entrances: tuple[str, ...]

    def __init__(
        self,
        parts: Parts,
        dim: int,
        layers: int,
        heads: int,
        length: int,
        vocab: int | None,
        dropout: float,
    ) -> None:
        super().__init__()
        if vocab is None:
            raise ZooError("arch.vocab is not known: give it, or choose a tokenizer")
        self.layered = {group: parts[group] for group in LAYERED}
        self.embed = registry.build("embed", parts["embed"], vocab, dim)
        self.head = registry.build("head", parts["head"], dim, vocab)

    def logits(self, hidden: Tensor, places: Tensor | None = None) -> Tensor:
        """(..., dim) -> (..., vocab); or (B, Q, dim) -> (N, vocab), of these (N,) of the B·Q
        places alone.
        """
        return self.head(
            hidden if places is None else hidden.flatten(0, 1)[places], self.embed.weight
        )

    def apply_head(
        self, hidden: Tensor, head_fn: HeadFn | None, places: Tensor | None = None
    ) -> Any:
        """The logits at these places, or what `head_fn` makes of the hidden states there."""
        if head_fn is None:
            return self.logits(hidden, places)
        hidden = hidden.flatten(0, 1)
        hidden = hidden if places is None else hidden[places]
        return head_fn(hidden, self.head, self.embed.weight)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """torch.compile in place; a graph may then continue past a number that is read, such as
        the tokens of an expert.
        """
        compat.compile_reads_of_numbers()
        super().compile(*args, **kwargs)

    @property
    def stacks(self) -> list[Stack]:
        return [module for module in self.children() if isinstance(module, Stack)]

    @property
    def limit(self) -> int | None:
        """The most tokens per sequence that its positions allow; None for any number."""
        return min((stack.limit for stack in self.stacks if stack.limit is not None), default=None)


class OneStack(Model):
    """A model of one sequence."""

    causal: bool
    entrances = ("hidden", "logits")

    def __init__(
        self,
        parts: Parts,
        *,
        dim: Annotated[int, Ge(1)] = 128,
        layers: Annotated[int, Ge(1), Le(10_000)] = 4,
        heads: Annotated[int, Ge(1)] = 4,
        length: Annotated[int, Ge(1)] = 256,
        vocab: Annotated[int, Ge(1)] | None = None,
        dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
        first: list[Any] = [],  # noqa: B006
        pattern: list[Any] = [],  # noqa: B006
        opening_norm: bool = False,
    ) -> None:
        super().__init__(parts, dim, layers, heads, length, vocab, dropout)
        self.stack = Stack(
            self.layered,
            dim,
            layers,
            heads,
            length,
            dropout,
            causal=self.causal,
            first=first,
            pattern=pattern,
            opening_norm=opening_norm,
        )

    def hidden(self, tokens: Tensor, padding_mask: Tensor | None = None, **given: Any) -> Tensor:
        """tokens (B, Q) -> hidden states (B, Q, dim), after the closing norm; `given` as in
        forward.
        """
        segments = given.pop("segments", None)
        return self.stack(self.embed(tokens, segments), padding_mask, **given)

    def forward(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        places: Tensor | None = None,
        head_fn: HeadFn | None = None,
        **given: Any,
    ) -> Any:
        """tokens (B, Q) -> logits (B, Q, vocab), or where `places` (N,) names some of the B·Q, of
        these alone (N, vocab).

        padding_mask (B, Q) is True where there is a token, on either side. May be given by name:
        positions (B, Q) and documents (B, Q), which place and separate packed documents; segments
        (B, Q), where the embedding has such; a cache (zoo.context.Cache) of the tokens before
        these; a trace (zoo.context.Trace) to be written. `head_fn` computes what is returned in
        place of logits, from hidden states (N, dim), head and embedding: a loss in chunks, for
        instance.
        """
        return self.apply_head(self.hidden(tokens, padding_mask, **given), head_fn, places)


@register("arch", "decoder")
class Decoder(OneStack):
    """Decoder only: each token sees those before it (GPT, Radford 2018).

    `vocab` defaults to what the tokenizer and the objective need; `length` is the sequence length
    trained on; `pattern` is a list of changes to the parts, repeated over the layers, as in
    `[{attn: {window: 128}}, {}]`, after those of `first`; `opening_norm` normalises the embeddings.
    """

    causal = True


@register("arch", "encoder")
class Encoder(OneStack):
    """Encoder only: each token sees all (BERT, Devlin 2018). Options as for a decoder."""

    family, causal = "encoder", False


@register("arch", "encoder_decoder")
class EncoderDecoder(Model):
    """A decoder that reads what an encoder made of another sequence (Vaswani 2017).

    `cross` chooses the attention between them (mha, gqa, mqa, or a mapping with options);
    `decoder_layers` defaults to `layers`; the other options as for a decoder, for both stacks. The
    embedding serves both.
    """

    family = "encoder_decoder"
    entrances = ("encode", "decode", "logits")

    def __init__(
        self,
        parts: Parts,
        *,
        dim: Annotated[int, Ge(1)] = 128,
        layers: Annotated[int, Ge(1), Le(10_000)] = 4,
        heads: Annotated[int, Ge(1)] = 4,
        length: Annotated[int, Ge(1)] = 256,
        vocab: Annotated[int, Ge(1)] | None = None,
        dropout: Annotated[float, Ge(0), Lt(1)] = 0.0,
        first: list[Any] = [],  # noqa: B006
        pattern: list[Any] = [],  # noqa: B006
        opening_norm: bool = False,
        decoder_layers: Annotated[int, Ge(1), Le(10_000)] | None = None,
        cross: Component = "mha",
    ) -> None:
        super().__init__(parts, dim, layers, heads, length, vocab, dropout)
        below = layers if decoder_layers is None else decoder_layers
        if cross is None:
            raise ZooError(
                "arch=encoder_decoder needs arch.cross, by which its decoder reads: mha, gqa or mqa"
            )
        changes: Any = {"first": first, "pattern": pattern, "opening_norm": opening_norm}
        self.encoder = Stack(
            self.layered,
            dim,
            layers,
            heads,
            length,
            dropout,
            causal=False,
            reader=3 * below,
            **changes,
        )
        self.decoder = Stack(
            self.layered, dim, below, heads, length, dropout, causal=True, reads=cross, **changes
        )

    def encode(self, tokens: Tensor, padding_mask: Tensor | None = None, **given: Any) -> Tensor:
        """tokens (B, M) -> memory (B, M, dim)."""
        return self.encoder(self.embed(tokens), padding_mask, **given)

    def decode(
        self,
        decoder_tokens: Tensor,
        memory: Tensor,
        padding_mask: Tensor | None = None,
        **given: Any,
    ) -> Tensor:
        """decoder_tokens (B, Q), memory (B, M, dim) with its padding_mask (B, M) -> hidden
        states (B, Q, dim).
        """
        return self.decoder(
            self.embed(decoder_tokens), memory=memory, memory_padding=padding_mask, **given
        )

    def hidden(
        self,
        tokens: Tensor,
        decoder_tokens: Tensor,
        padding_mask: Tensor | None = None,
        *,
        decoder_padding_mask: Tensor | None = None,
        trace: Any = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Hidden states (B, Q, dim) of the decoder."""
        memory = self.encode(tokens, padding_mask, trace=trace)
        return self.decode(
            decoder_tokens,
            memory,
            padding_mask,
            padding=decoder_padding_mask,
            trace=trace,
            cache=cache,
        )

    def forward(
        self,
        tokens: Tensor,
        decoder_tokens: Tensor,
        padding_mask: Tensor | None = None,
        *,
        head_fn: HeadFn | None = None,
        **given: Any,
    ) -> Any:
        """tokens (B, M) and decoder_tokens (B, Q) -> logits (B, Q, vocab).

        padding_mask (B, M) is True where there is a token of the first sequence, on either side.
        May be given by name: decoder_padding_mask (B, Q), a trace (zoo.context.Trace) to be
        written; `head_fn` as for a decoder.
        """
        return self.apply_head(self.hidden(tokens, decoder_tokens, padding_mask, **given), head_fn)


def build(config: Mapping[str, Any], *, seed: int = 0, device: str = "cpu") -> Any:
    """The configured model, each parameter drawn from its own stream of `seed`; on "meta" it costs
    no memory.

    Raises ZooError for a combination that has no meaning.
    """
    with torch.device("meta"):
        model = registry.build("arch", config["arch"], config)
    model.config = config
    registry.build("init", config["init"]).settle(model)
    return model if device == "meta" else fill(model, seed=seed, device=device)


def fill(model: Any, *, seed: int, device: str = "cpu") -> Any:
    """Give a model on the meta device memory and its initial values. Raises ZooError for too
    little memory.
    """
    try:
        model.to_empty(device=device)
    except RuntimeError as error:
        total = sum(parameter.numel() for parameter in model.parameters())
        raise ZooError(
            f"there is not the memory for a model of {total:,} parameters"
            f" ({errors.first_line(error)}):"
            " make it smaller; python -m zoo.cost says what one needs"
        ) from error
    initialise(model, model.config["init"], seed)
    return model
