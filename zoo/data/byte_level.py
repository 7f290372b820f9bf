"""Builds byte-level BPE tokenizers of the tokenizers library, and cuts long texts for them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from zoo.errors import ZooError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

EOT = "<|endoftext|>"
BYTES = 256
Merges = list[tuple[str, str]]


def byte_level(vocab: Mapping[str, int], merges: Merges) -> LibraryTokenizer:
    """A byte-level BPE tokenizer; its vocabulary has end-of-text, which no text encodes to."""
    # Threads are wanted: without this, the library warns at every later fork, though no child of
    # ours uses it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from tokenizers import Tokenizer as LibraryTokenizer
    from tokenizers import decoders, models, pre_tokenizers

    tokenizer = LibraryTokenizer(models.BPE(vocab=dict(vocab), merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOT])
    # The words "<|endoftext|>" inside a document are text like any other.
    tokenizer.encode_special_tokens = True
    return tokenizer


def exported(
    vocab: Mapping[str, int], merges: Merges, special_tokens: Mapping[str, int]
) -> LibraryTokenizer:
    """A byte-level tokenizer as transformers uses it: a text starts with end-of-text."""
    from tokenizers import processors

    tokenizer = byte_level({**vocab, **special_tokens}, merges)
    # They are in the vocabulary with their ids already, so that none gets a new one.
    tokenizer.add_special_tokens(list(special_tokens))
    tokenizer.encode_special_tokens = False  # [MASK] in a text is the mask
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EOT} $A",
        pair=f"{EOT} $A {EOT} $B",
        special_tokens=[(EOT, vocab[EOT])],
    )
    return tokenizer


def byte_letters() -> dict[str, int]:
    """The letter for each byte in a byte-level vocabulary, as GPT-2's: itself where printable."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(BYTES + place): byte for place, byte in enumerate(others)}


_LINE_END = re.compile(r"(?<=\S)\n(?=\w)")


def parts(text: str, size: int = 1 << 20) -> Iterator[str]:
    """Cut a text into parts of about `size` characters; the library takes some 30 bytes per byte.

    Cuts are where a single line end stands between words, which the pre-tokenizer cuts too: the ids
    stay the same.
    """
    utf8(text)
    start = 0
    while (cut := _LINE_END.search(text, start + size)) is not None:
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:]


def utf8(text: str) -> bytes:
    """Encode a text. Raises ZooError for text that UTF-8 cannot hold."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ZooError(
            f"character {error.start} of the text is half of a surrogate pair, which is no text"
        ) from None
