"""Tokens on disk: a source is tokenised once, and every later run maps the result into memory."""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.data.baselines import baseline_bits, unigram_nats
from zoo.data.source import Source
from zoo.data.tokenizers import Tokenizer, loads
from zoo.errors import ZooError
from zoo.utils.progress import doing

FORMAT = 3
HEAD = (
    4 << 20
)  # bytes of the train text that are tokenised where the rest is streamed; the document that passes them is whole
log = logging.getLogger("zoo")


@dataclass(frozen=True)
class Tokens:
    """One split. `ids` (tokens,) holds each document as end-of-text and then its tokens: end-of-text starts a document
    and, as the next token, ends the one before. `starts` (documents,) says where; `bytes` counts those of the text.
    """

    ids: np.ndarray
    starts: np.ndarray
    bytes: int
    eot: int

    @property
    def documents(self) -> int:
        return len(self.starts)

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers that are not forked get the name of the mapped file, not a copy of its content.
        if isinstance(self.ids, np.memmap) and self.ids.filename:
            return _map, (Path(self.ids.filename), self.ids.dtype, self.bytes, self.eot)
        return Tokens, (self.ids, self.starts, self.bytes, self.eot)


@dataclass(frozen=True)
class Corpus:
    """A tokenised source: its splits train, val, test, its trained tokenizer, and what a run's summary says of it.

    Where train is streamed, `splits` has in its place `head`, the first documents of it.
    """

    splits: dict[str, Tokens]
    tokenizer: Tokenizer
    summary: dict[str, Any]

    @property
    def known(self) -> Tokens:
        """What is tokenised of the train text."""
        return self.splits["head" if "head" in self.splits else "train"]


class _Corrupt(Exception):
    pass


def load(
    source: Source,
    tokenizer: Tokenizer,
    cache_dir: str | Path | None = None,
    *,
    stream: bool = False,
) -> Corpus:
    """The tokens of a source, from the cache where it has them, else built and put there.

    The cache lies in `cache_dir`, else $ZOO_CACHE, else ~/.cache/transformer-zoo. An untrained tokenizer is trained on
    the train split; `tokenizer` itself is left as it is. With `stream` the first HEAD bytes of the train split take its place
    in all of this: the rest is read once, to tell the splits apart, but not tokenised; `summary["measured_on"]` says so, and
    counts that would need it are None. A damaged cache is built anew, which a warning and `summary["note"]` say. Raises
    ZooError for what the source refuses, for a source that changes meanwhile and for a full disk.
    """
    root = Path(
        os.path.expanduser(cache_dir or os.environ.get("ZOO_CACHE") or "~/.cache/transformer-zoo")
    )
    with doing("reading the data"):
        fingerprint = source.fingerprint()
    whole = f"{FORMAT}\n{fingerprint}\n{tokenizer.dumps()}" + (f"\nhead {HEAD}" if stream else "")
    key = hashlib.sha256(whole.encode()).hexdigest()[:32]
    try:
        if (root / key).exists():
            with doing("reading the tokens"):
                return _read(root / key)
        note = ""
    except _Corrupt as error:
        note = f"the token cache {root / key} was damaged ({error}) and has been built anew"
        log.warning(note)
    root = _writable(root)
    building = root / f".{key}.{uuid.uuid4().hex}"
    try:
        building.mkdir()
        _write(building, source, tokenizer, fingerprint, stream)
        corpus = _publish(building, root / key)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ZooError(
                f"no space left for the token cache in {root}: free some, or set ZOO_CACHE"
            ) from error
        raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return Corpus(
        corpus.splits, corpus.tokenizer, corpus.summary | ({"note": note} if note else {})
    )


def _read(folder: Path) -> Corpus:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        counts = meta["summary"]["splits"]
        for name in [
            "tokenizer.json",
            *(f"{split}{end}" for split in counts for end in (".bin", ".starts.npy")),
        ]:
            if _sha256(folder / name) != meta["checksums"][name]:
                raise _Corrupt(f"{name} does not match its checksum")
        if _sha256_text(json.dumps(meta["summary"])) != meta["checksums"]["summary"]:
            raise _Corrupt("the summary in meta.json does not match its checksum")
        tokenizer = loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        dtype = _dtype(tokenizer.vocab)
        splits = {
            name: _map(folder / f"{name}.bin", dtype, counts[name]["bytes"], tokenizer.eot)
            for name in counts
        }
        return Corpus(splits, tokenizer, meta["summary"])
    except OSError as error:
        raise _Corrupt(f"{Path(error.filename or '').name}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Corrupt(f"meta.json cannot be read: {type(error).__name__} {error}") from error


def _map(path: Path, dtype: np.dtype, size: int, eot: int) -> Tokens:
    # An empty file cannot be mapped.
    ids = np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
    return Tokens(ids, np.load(path.with_suffix(".starts.npy")), size, eot)


def _dtype(vocab: int) -> np.dtype:
    return np.dtype("<u2" if vocab <= 1 << 16 else "<u4")


def _write(
    folder: Path, source: Source, tokenizer: Tokenizer, fingerprint: str, stream: bool
) -> None:
    with doing("reading the data"):
        found = source.splits()
    tokenizer = loads(tokenizer.dumps())
    first, size = (
        ("head", min(HEAD, found.bytes["train"])) if stream else ("train", found.bytes["train"])
    )
    passes = size * (1 if tokenizer.trained else 2) + found.bytes["val"] + found.bytes["test"]
    with doing("tokenising", passes) as advance:
        if not tokenizer.trained:
            tokenizer.train(_counted(_until(size, found.rows["train"]), advance))
        texts = {
            first: _until(size, found.rows["train"]),
            "val": found.rows["val"],
            "test": found.rows["test"],
        }
        counts = {
            split: _tokenise(folder / f"{split}.bin", _counted(rows, advance), tokenizer)
            for split, rows in texts.items()
        }
    (folder / "tokenizer.json").write_text(tokenizer.dumps(), encoding="utf-8")
    if source.fingerprint() != fingerprint:
        raise ZooError(f"{source} changed while it was being read: start again when it is still")
    with doing("measuring what unigrams, bigrams and xz reach on this text"):
        measured = _measured(folder, first, tokenizer)
    summary = {
        "fingerprint": fingerprint,
        **{
            what: None if stream else sum(each[what] for each in counts.values())
            for what in ("documents", "tokens")
        },
        "bytes": sum(found.bytes.values()),
        "splits": counts,
        "split": found.rule,
        "cuts": found.cuts,
        "skipped": found.skipped,
        "tokenizer": {"name": tokenizer.name, "vocab": tokenizer.vocab, **tokenizer.settings()},
        "measured_on": first,
        **measured,
    }
    checksums = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    checksums["summary"] = _sha256_text(json.dumps(summary))
    meta = json.dumps({"summary": summary, "checksums": checksums}, indent=1)
    (folder / "meta.json").write_text(meta, encoding="utf-8")


def _until(size: int, rows: Iterable[dict[str, str]]) -> Iterator[dict[str, str]]:
    """The first rows, until their texts are so many bytes together."""
    for row in rows if size else ():
        yield row
        size -= len(row["text"].encode())
        if size <= 0:
            return


def _measured(folder: Path, first: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """What simple models reach on the validation text: measured once, since no run changes it."""
    dtype, piece = _dtype(tokenizer.vocab), 1 << 20
    train, val = (
        _map(folder / f"{split}.bin", dtype, 0, tokenizer.eot).ids for split in (first, "val")
    )
    texts = (
        tokenizer.decode_bytes(train[start : start + piece])
        for start in range(0, len(train), piece)
    )
    return {
        "yardsticks": baseline_bits(texts, tokenizer.decode_bytes(val)),
        "unigram_nats": unigram_nats(train, val, tokenizer.vocab),
    }


def _tokenise(path: Path, texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, int]:
    starts, tokens, size = array("q"), 0, 0
    with path.open("wb") as file:
        for text, ids in encoded(texts, tokenizer):
            starts.append(tokens)
            tokens += len(ids)
            size += len(text.encode())
            file.write(ids.tobytes())
    np.save(path.with_suffix(".starts.npy"), np.array(starts, dtype=np.int64))
    return {"documents": len(starts), "bytes": size, "tokens": tokens}


def encoded(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[tuple[str, np.ndarray]]:
    """Each text and its ids, end-of-text first, as `Tokens` holds them."""
    for batch in _batches(texts):
        for text, ids in zip(batch, tokenizer.encode_batch(batch), strict=True):
            yield text, np.concatenate([[tokenizer.eot], ids]).astype(_dtype(tokenizer.vocab))


def _batches(texts: Iterable[str], size: int = 1 << 20) -> Iterator[list[str]]:
    """Lists of texts of about `size` characters each: enough for every core, little enough for memory."""
    batch: list[str] = []
    room = size
    for text in texts:
        batch.append(text)
        room -= 1 + len(text)
        if room < 0:
            yield batch
            batch, room = [], size
    if batch:
        yield batch


def _publish(building: Path, folder: Path) -> Corpus:
    """Give a finished folder its name. Whoever comes first wins; the others use the winner's, unless it is damaged."""
    while True:
        try:
            building.rename(folder)
        except OSError:
            if not folder.exists():
                raise
        try:
            return _read(folder)
        except _Corrupt as error:
            if not building.exists():
                raise ZooError(
                    f"the token cache {folder} cannot be read back ({error}): start again"
                ) from error
            damaged = building.with_suffix(".damaged")
            folder.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)


def _writable(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
        return root
    except OSError as error:
        spare = Path(tempfile.mkdtemp(prefix="transformer-zoo-"))
        atexit.register(shutil.rmtree, spare, ignore_errors=True)
        log.warning(
            f"the token cache {root} cannot be written ({error.strerror}), so this run uses {spare}"
        )
        return spare


def _counted(rows: Iterable[dict[str, str]], advance: Callable[[int], None]) -> Iterator[str]:
    """The texts of rows, of each of which the progress is told when it has been used."""
    for row in rows:
        yield row["text"]
        advance(len(row["text"].encode()))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
