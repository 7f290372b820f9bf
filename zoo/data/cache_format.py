"""Reads and completes a token cache's folder: token files, tokenizer, summary and checksums."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.data.tokenizers import Tokenizer, loads
from zoo.data.tokens import Tokens, id_dtype, map_tokens
from zoo.utils.files import sha256

FORMAT = 3  # part of a cache's key, so that one of another format is not found


@dataclass(frozen=True)
class Corpus:
    """A tokenised source: its splits train, val and test, its trained tokenizer, and its summary.

    Where train is streamed, `splits` has `head` instead: the first documents of it.
    """

    splits: dict[str, Tokens]
    tokenizer: Tokenizer
    summary: dict[str, Any]

    @property
    def tokenised_train(self) -> Tokens:
        """The part of the train text that is tokenised."""
        return self.splits["head" if "head" in self.splits else "train"]


class CorruptCacheError(Exception):
    """A cache's folder is incomplete or was changed."""


def read(folder: Path) -> Corpus:
    """Read a cache's folder. Raises CorruptCacheError unless everything matches its checksum."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        summary, checksums = meta["summary"], meta["checksums"]
        splits = summary["splits"]
        token_files = [f"{name}{end}" for name in splits for end in (".bin", ".starts.npy")]
        for name in ["tokenizer.json", *token_files]:
            if sha256(folder / name) != checksums[name]:
                raise CorruptCacheError(f"{name} does not match its checksum")
        if _summary_checksum(summary) != checksums["summary"]:
            raise CorruptCacheError("the summary in meta.json does not match its checksum")
        tokenizer = loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        dtype = id_dtype(tokenizer.vocab)
        tokens = {
            name: map_tokens(folder / f"{name}.bin", dtype, counts["bytes"], tokenizer.eot)
            for name, counts in splits.items()
        }
        return Corpus(tokens, tokenizer, summary)
    except OSError as error:
        raise CorruptCacheError(f"{Path(error.filename or '').name}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"meta.json cannot be read: {type(error).__name__} {error}"
        raise CorruptCacheError(reason) from error


def write_meta(folder: Path, summary: dict[str, Any]) -> None:
    """Complete a cache's folder by its summary and the checksums of all that is in it."""
    checksums = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    checksums["summary"] = _summary_checksum(summary)
    meta = json.dumps({"summary": summary, "checksums": checksums}, indent=1)
    (folder / "meta.json").write_text(meta, encoding="utf-8")


def _summary_checksum(summary: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(summary).encode()).hexdigest()
