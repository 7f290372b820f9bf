"""Tokenizers: text to integer ids and back without loss. Their vocabulary size is declared, not discovered."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from zoo.errors import ZooError
from zoo.registry import build, register

EOT = "<|endoftext|>"
BYTES = 256


class Tokenizer:
    """What every tokenizer offers. `pieces[id]` are the bytes an id stands for; end-of-text and unused ids have none.

    `vocab` is the declared number of ids, so that a model's shape follows from its configuration alone; `eot` is the id
    of end-of-text, which no text encodes to; `trained` says whether `encode` may be called.
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
        """The ids of each text, int64 of shape (tokens,). Raises ZooError for text that UTF-8 cannot hold."""
        raise NotImplementedError

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, int64 of shape (tokens,). Raises ZooError for text that UTF-8 cannot hold."""
        return self.encode_batch([text])[0]

    def decode_bytes(self, ids: Iterable[int] | np.ndarray) -> bytes:
        """The exact bytes that were encoded. Raises ZooError for an id outside the vocabulary."""
        array = np.asarray(ids if hasattr(ids, "__array__") else list(ids), dtype=np.int64).ravel()
        if array.size and not 0 <= array.min() <= array.max() < self.vocab:
            raise ZooError(
                f"cannot decode ids {array.min()} to {array.max()}: the vocabulary ends at {self.vocab - 1}"
            )
        return b"".join(map(self.pieces.__getitem__, array.tolist()))

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The text of these ids; bytes that are not UTF-8 (a character cut in two) become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def byte_lengths(self) -> np.ndarray:
        """How many bytes each id stands for, int64 of shape (vocab,)."""
        return np.array([len(piece) for piece in self.pieces], dtype=np.int64)

    def library(self, named: Mapping[str, int]) -> Any:
        """The same as a Tokenizer of the tokenizers library, which transformers loads: a text starts a document.

        `named` are the special tokens that it is to know beside end-of-text, with their ids.
        """
        raise ZooError(
            f"tokenizer={self.name} has no counterpart in the tokenizers library: it says none in library(named)"
        )

    def settings(self) -> dict[str, Any]:
        """The options this tokenizer was built with."""
        return {}

    def state(self) -> Any:
        """What training added, as JSON data; None when untrained."""
        return None

    def load_state(self, state: Any) -> None:
        """Take on what `state` gave. Raises ZooError when it is not such a state."""
        if state is not None:
            raise ZooError(
                f"the saved {self.name} tokenizer is damaged: it has a state, and needs none"
            )

    def dumps(self) -> str:
        """The whole tokenizer as JSON, for `loads`."""
        return json.dumps(
            {"name": self.name, **self.settings(), "state": self.state()}, ensure_ascii=False
        )


def loads(text: str) -> Tokenizer:
    """The tokenizer that `dumps` wrote. Raises ZooError for anything else: nothing in the text is trusted."""
    try:
        options = json.loads(text)
        state = options.pop("state")
        sound = isinstance(options["name"], str) and "${" not in json.dumps(
            options
        )  # OmegaConf would resolve it
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ZooError(f"this is not a tokenizer saved by the zoo ({error})") from None
    if not sound:
        raise ZooError(
            "this is not a tokenizer saved by the zoo (its name or an option is no plain value)"
        )
    tokenizer: Tokenizer = build("tokenizer", options)
    tokenizer.load_state(state)
    return tokenizer


@register("tokenizer", "byte")
class Byte(Tokenizer):
    """The 256 bytes of UTF-8 and end-of-text: a vocabulary of 257 and no training (Xue et al. 2022, ByT5)."""

    name = "byte"
    vocab = BYTES + 1
    eot = BYTES
    trained = True
    pieces = [*(bytes([byte]) for byte in range(BYTES)), b""]  # noqa: RUF012

    def train(self, texts: Iterable[str]) -> None:
        """Nothing to fit."""

    def library(self, named: Mapping[str, int]) -> Any:
        return _exported({**_letters(), EOT: self.eot}, [], named)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(_utf8(text), dtype=np.uint8).astype(np.int64) for text in texts]


@register("tokenizer", "bpe")
class BPE(Tokenizer):
    """Byte-level byte-pair encoding with GPT-2's pre-tokenizer (Sennrich et al. 2016; Radford et al. 2019).

    `vocab` counts end-of-text (id 0), the 256 bytes and the merges. It is a ceiling: a small text has fewer merges to
    learn, and the ids left over stay unused. `min_frequency` is how often a pair must occur to be merged.
    """

    name = "bpe"
    eot = 0

    def __init__(self, *, vocab: int = 4096, min_frequency: int = 2) -> None:
        if not BYTES + 1 <= vocab <= 1 << 24:
            raise ZooError(
                f"tokenizer.vocab={vocab} must be {BYTES + 1} (bytes and end-of-text) to {1 << 24}"
            )
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
        blank = _byte_level({EOT: self.eot}, [])
        blank.train_from_iterator((part for text in texts for part in _parts(text)), trainer)
        self.load_state(json.loads(blank.to_str()))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        if not self.trained:
            raise ZooError("this BPE tokenizer has not been trained: call train(texts) first")
        parts = [list(_parts(text)) for text in texts]
        encoded = iter(self._bpe.encode_batch_fast([part for some in parts for part in some]))
        return [
            np.array([i for _ in some for i in next(encoded).ids], dtype=np.int64) for some in parts
        ]

    def state(self) -> Any:
        """The tokenizer.json of the tokenizers library, as it reads it itself."""
        return json.loads(self._bpe.to_str()) if self.trained else None

    def load_state(self, state: Any) -> None:
        """Only the vocabulary and the merges are read; all else is what this class says."""
        if state is None:
            return
        letters = _letters()
        try:
            ids, merges = (
                dict(state["model"]["vocab"]),
                [(left, right) for left, right in state["model"]["merges"]],
            )
            pieces = {
                i: bytes(letters[letter] for letter in token)
                for token, i in ids.items()
                if token != EOT
            }
            sound = sorted([ids[EOT], *pieces]) == list(range(len(ids))) and len(ids) <= self.vocab
            sound = sound and ids[EOT] == self.eot and set(letters) <= set(ids)
            sound = sound and all(type(i) is int for i in ids.values())
            sound = sound and all(
                {left, right, left + right} <= ids.keys() for left, right in merges
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ZooError(
                f"the saved BPE tokenizer is damaged ({type(error).__name__}: {error})"
            ) from None
        if not sound:
            raise ZooError(
                f"the saved BPE tokenizer is damaged: its ids are not those of a vocabulary of {self.vocab}"
            )
        self.pieces = [pieces.get(i, b"") for i in range(self.vocab)]
        self._model = ids, merges
        self.trained = True

    def library(self, named: Mapping[str, int]) -> Any:
        ids, merges = self._model
        unused = {f"<|unused{number}|>": number for number in range(len(ids), self.vocab)}
        return _exported(ids, merges, {**unused, **named})

    @cached_property
    def _bpe(self) -> Any:
        return _byte_level(*self._model)


def _byte_level(vocab: dict[str, int], merges: list[Any]) -> Any:
    # Threads were asked for: without this, the library warns at every later fork, though no child of ours uses it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers

    bpe = Library(models.BPE(vocab=vocab, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([EOT])
    bpe.encode_special_tokens = (
        True  # the words "<|endoftext|>" inside a document are text like any other
    )
    return bpe


def _exported(vocab: Mapping[str, int], merges: list[Any], named: Mapping[str, int]) -> Any:
    from tokenizers import processors

    made = _byte_level({**vocab, **named}, merges)
    made.add_special_tokens(
        list(named)
    )  # of which the model's vocabulary knows the ids, so that none is given a new one
    made.encode_special_tokens = False  # a mask in a text is one
    made.post_processor = processors.TemplateProcessing(
        single=f"{EOT} $A",
        pair=f"{EOT} $A {EOT} $B",
        special_tokens=[(EOT, vocab[EOT])],
    )
    return made


def _letters() -> dict[str, int]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2: printable ones stand for themselves)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(BYTES + n): byte for n, byte in enumerate(others)
    }


_LINE_END = re.compile(r"(?<=\S)\n(?=\w)")


def _parts(text: str, size: int = 1 << 20) -> Iterator[str]:
    """The text in parts of about `size` characters, since the library holds some 30 bytes for each byte of a part.

    Cut where a single line end stands between words, which the pre-tokenizer does too: the ids stay the same.
    """
    _utf8(text)
    start = 0
    while (cut := _LINE_END.search(text, start + size)) is not None:
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:]


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ZooError(
            f"character {error.start} of the text is half of a surrogate pair, which is no text"
        ) from None
