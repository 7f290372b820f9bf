"""Tokenizers: text to ids and back without loss, with a vocabulary of declared size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from zoo.data.byte_level import BYTES, EOT, byte_letters, byte_level, exported, parts, utf8
from zoo.errors import ZooError
from zoo.registry import build, register

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer


class Tokenizer:
    """Encodes text as ids, and ids as the exact bytes of the text.

    `pieces[id]` are the bytes an id stands for; end-of-text and unused ids have none. `vocab` is
    the declared number of ids, so that a model's shape follows from its configuration alone; `eot`
    is the id of end-of-text, which no text encodes to; `trained` says whether `encode` may be
    called.
    """

    name: str
    vocab: int
    eot: int
    trained: bool
    pieces: list[bytes]

    def train(self, texts: Iterable[str]) -> None:
        """Fit the tokenizer to these texts. Deterministic."""
        raise NotImplementedError

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, int64 of shape (tokens,).

        Raises ZooError for text that UTF-8 cannot hold.
        """
        raise NotImplementedError

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, int64 of shape (tokens,).

        Raises ZooError for text that UTF-8 cannot hold.
        """
        return self.encode_batch([text])[0]

    def decode_bytes(self, ids: Iterable[int] | np.ndarray) -> bytes:
        """The exact bytes that were encoded. Raises ZooError for an id outside the vocabulary."""
        array = np.asarray(ids if hasattr(ids, "__array__") else list(ids), dtype=np.int64).ravel()
        if array.size and not 0 <= array.min() <= array.max() < self.vocab:
            raise ZooError(
                f"cannot decode ids {array.min()} to {array.max()}: the vocabulary ends at"
                f" {self.vocab - 1}"
            )
        return b"".join(map(self.pieces.__getitem__, array.tolist()))

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The text of these ids; bytes that are not UTF-8 (a cut character) become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def byte_lengths(self) -> np.ndarray:
        """How many bytes each id stands for, int64 of shape (vocab,)."""
        return np.array([len(piece) for piece in self.pieces], dtype=np.int64)

    def to_library(self, special_tokens: Mapping[str, int]) -> LibraryTokenizer:
        """The same tokenizer for the tokenizers library, which transformers loads.

        A text starts a document. `special_tokens` are those to be known beside end-of-text, with
        their ids.
        """
        raise ZooError(
            f"tokenizer={self.name} cannot be exported: it has no to_library(special_tokens), which"
            " makes its counterpart in the tokenizers library"
        )

    def settings(self) -> dict[str, Any]:
        """The options this tokenizer was built with."""
        return {}

    def state(self) -> Any:
        """What training added, as JSON data; None when untrained."""
        return None

    def load_state(self, state: Any) -> None:
        """Take on what `state` returned. Raises ZooError when it is not such a state."""
        if state is not None:
            raise ZooError(
                f"the saved {self.name} tokenizer is damaged: it has a state, and needs none"
            )

    def dumps(self) -> str:
        """The whole tokenizer as JSON, for `loads`."""
        content = {"name": self.name, **self.settings(), "state": self.state()}
        return json.dumps(content, ensure_ascii=False)


def loads(text: str) -> Tokenizer:
    """Load what `dumps` wrote. Raises ZooError for anything else, as the text is not trusted."""
    try:
        options = json.loads(text)
        state = options.pop("state")
        interpolates = "${" in json.dumps(options)  # OmegaConf would resolve it
        valid = isinstance(options["name"], str) and not interpolates
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ZooError(f"this is not a tokenizer saved by the zoo ({error})") from None
    if not valid:
        raise ZooError(
            "this is not a tokenizer saved by the zoo (its name or an option is not a plain value)"
        )
    tokenizer: Tokenizer = build("tokenizer", options)
    tokenizer.load_state(state)
    return tokenizer


@register("tokenizer", "byte")
class Byte(Tokenizer):
    """The 256 bytes of UTF-8 and end-of-text: 257 ids and no training (Xue et al. 2022, ByT5)."""

    name = "byte"
    vocab = BYTES + 1
    eot = BYTES
    trained = True
    pieces = [*(bytes([byte]) for byte in range(BYTES)), b""]  # noqa: RUF012

    def train(self, texts: Iterable[str]) -> None:
        """Nothing to fit."""

    def to_library(self, special_tokens: Mapping[str, int]) -> LibraryTokenizer:
        return exported({**byte_letters(), EOT: self.eot}, [], special_tokens)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(utf8(text), dtype=np.uint8).astype(np.int64) for text in texts]


@register("tokenizer", "bpe")
class BPE(Tokenizer):
    """Byte-level byte-pair encoding as GPT-2's (Sennrich et al. 2016; Radford et al. 2019).

    `vocab` counts end-of-text (id 0), the 256 bytes and the merges. It is a ceiling: a small text
    has fewer merges to learn, and the ids left over stay unused. `min_frequency` is how often a
    pair must occur to be merged.
    """

    name = "bpe"
    eot = 0

    def __init__(
        self,
        *,
        vocab: Annotated[int, Ge(257), Le(2**24)] = 4096,
        min_frequency: Annotated[int, Ge(0)] = 2,
    ) -> None:
        self.vocab, self.min_frequency = vocab, min_frequency
        self.trained = False

    def settings(self) -> dict[str, Any]:
        return {"vocab": self.vocab, "min_frequency": self.min_frequency}

    def train(self, texts: Iterable[str]) -> None:
        from tokenizers import pre_tokenizers, trainers

        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab,
            min_frequency=self.min_frequency,
            special_tokens=[EOT],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        untrained = byte_level({EOT: self.eot}, [])
        untrained.train_from_iterator((part for text in texts for part in parts(text)), trainer)
        self.load_state(json.loads(untrained.to_str()))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        if not self.trained:
            raise ZooError("this BPE tokenizer has not been trained: call train(texts) first")
        parts_of = [list(parts(text)) for text in texts]
        flat = [part for some in parts_of for part in some]
        encodings = iter(self._library.encode_batch_fast(flat))
        encoded = []
        for some in parts_of:
            ids = [i for _ in some for i in next(encodings).ids]
            encoded.append(np.array(ids, dtype=np.int64))
        return encoded

    def state(self) -> Any:
        """The tokenizer.json of the tokenizers library, as it reads it itself."""
        return json.loads(self._library.to_str()) if self.trained else None

    def load_state(self, state: Any) -> None:
        """Load the vocabulary and the merges; nothing else in the state is read."""
        if state is None:
            return
        letters = byte_letters()
        try:
            ids = dict(state["model"]["vocab"])
            merges = [(left, right) for left, right in state["model"]["merges"]]
            pieces = {
                i: bytes(letters[letter] for letter in token)
                for token, i in ids.items()
                if token != EOT
            }
            valid = (
                sorted([ids[EOT], *pieces]) == list(range(len(ids)))
                and len(ids) <= self.vocab
                and ids[EOT] == self.eot
                and set(letters) <= set(ids)
                and all(type(i) is int for i in ids.values())
                and all({left, right, left + right} <= ids.keys() for left, right in merges)
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ZooError(
                f"the saved BPE tokenizer is damaged ({type(error).__name__}: {error})"
            ) from None
        if not valid:
            raise ZooError(
                "the saved BPE tokenizer is damaged: its ids are not those of a vocabulary of"
                f" {self.vocab}"
            )
        self.pieces = [pieces.get(i, b"") for i in range(self.vocab)]
        self._model = ids, merges
        self.trained = True

    def to_library(self, special_tokens: Mapping[str, int]) -> LibraryTokenizer:
        ids, merges = self._model
        unused = {f"<|unused{number}|>": number for number in range(len(ids), self.vocab)}
        return exported(ids, merges, {**unused, **special_tokens})

    @cached_property
    def _library(self) -> LibraryTokenizer:
        return byte_level(*self._model)
