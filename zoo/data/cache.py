"""Loads a source's tokens from the token cache, which is built once and mapped by later runs."""

from __future__ import annotations

import atexit
import errno
import hashlib
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from zoo.data import cache_format
from zoo.data.baselines import baseline_bits, unigram_nats
from zoo.data.cache_format import FORMAT, Corpus, CorruptCacheError
from zoo.data.source import Source
from zoo.data.tokenizers import Tokenizer, loads
from zoo.data.tokens import id_dtype, map_tokens, write_tokens
from zoo.errors import ZooError
from zoo.utils.progress import doing

# Bytes of the train text that are tokenised where the rest is streamed; documents are not cut.
HEAD = 4 << 20
log = logging.getLogger("zoo")


def load(
    source: Source,
    tokenizer: Tokenizer,
    cache_dir: str | Path | None = None,
    *,
    stream: bool = False,
) -> Corpus:
    """Load the tokens of a source from the cache, building them there first where it lacks them.

    The cache lies in `cache_dir`, else $ZOO_CACHE, else ~/.cache/transformer-zoo. An untrained
    tokenizer is trained on the train split; `tokenizer` itself is left as it is. With `stream` the
    first HEAD bytes of the train split take its place in all of this: the rest is read once, to
    split the documents, but not tokenised; `summary["measured_on"]` says so, and counts that would
    need it are None. A damaged cache is rebuilt, which a warning and `summary["note"]` say. Raises
    ZooError for what the source refuses, for a source that changes meanwhile and for a full disk.
    """
    root = Path(
        os.path.expanduser(cache_dir or os.environ.get("ZOO_CACHE") or "~/.cache/transformer-zoo")
    )
    with doing("reading the data"):
        fingerprint = source.fingerprint()
    identity = f"{FORMAT}\n{fingerprint}\n{tokenizer.dumps()}"
    if stream:
        identity += f"\nhead {HEAD}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:32]
    note = ""
    if (root / key).exists():
        try:
            with doing("reading the tokens"):
                return cache_format.read(root / key)
        except CorruptCacheError as error:
            note = f"the token cache {root / key} was damaged ({error}) and has been rebuilt"
            log.warning(note)
    root = _writable(root)
    building = root / f".{key}.{uuid.uuid4().hex}"
    try:
        building.mkdir()
        _build(building, source, tokenizer, fingerprint, stream)
        corpus = _publish(building, root / key)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ZooError(
                f"no space left for the token cache in {root}: free some, or set ZOO_CACHE"
            ) from error
        raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    if note:
        corpus.summary["note"] = note
    return corpus


def _build(
    folder: Path, source: Source, tokenizer: Tokenizer, fingerprint: str, stream: bool
) -> None:
    """Tokenise a source into a folder."""
    with doing("reading the data"):
        splits = source.splits()
    tokenizer = loads(tokenizer.dumps())
    train, size = "train", splits.bytes["train"]
    if stream:
        train, size = "head", min(HEAD, size)
    passes = 1 if tokenizer.trained else 2  # over the train text
    total = size * passes + splits.bytes["val"] + splits.bytes["test"]
    with doing("tokenising", total) as advance:
        if not tokenizer.trained:
            tokenizer.train(_texts(_first(size, splits.documents["train"]), advance))
        documents = {
            train: _first(size, splits.documents["train"]),
            "val": splits.documents["val"],
            "test": splits.documents["test"],
        }
        counts = {
            name: write_tokens(folder / f"{name}.bin", _texts(some, advance), tokenizer)
            for name, some in documents.items()
        }
    (folder / "tokenizer.json").write_text(tokenizer.dumps(), encoding="utf-8")
    if source.fingerprint() != fingerprint:
        raise ZooError(
            f"{source} changed while it was being read: start again when nothing writes to it"
        )
    with doing("measuring the unigram, bigram and xz baselines"):
        baselines = _baselines(folder, train, tokenizer)
    totals = {
        name: None if stream else sum(split[name] for split in counts.values())
        for name in ("documents", "tokens")
    }
    summary = {
        "fingerprint": fingerprint,
        **totals,
        "bytes": sum(splits.bytes.values()),
        "splits": counts,
        "split": splits.rule,
        "cuts": splits.cuts,
        "skipped": splits.skipped,
        "tokenizer": {"name": tokenizer.name, "vocab": tokenizer.vocab, **tokenizer.settings()},
        "measured_on": train,
        **baselines,
    }
    cache_format.write_meta(folder, summary)


def _first(size: int, documents: Iterable[dict[str, str]]) -> Iterator[dict[str, str]]:
    """The first documents, until their texts have `size` bytes together."""
    if not size:
        return
    for document in documents:
        yield document
        size -= len(document["text"].encode())
        if size <= 0:
            return


def _texts(documents: Iterable[dict[str, str]], advance: Callable[[int], None]) -> Iterator[str]:
    """The texts of documents; progress advances by each when it has been used."""
    for document in documents:
        yield document["text"]
        advance(len(document["text"].encode()))


def _baselines(folder: Path, train: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """The baselines of the validation text: measured once, since no run changes them."""
    dtype, piece = id_dtype(tokenizer.vocab), 1 << 20
    train_ids = map_tokens(folder / f"{train}.bin", dtype, 0, tokenizer.eot).ids
    val_ids = map_tokens(folder / "val.bin", dtype, 0, tokenizer.eot).ids
    train_pieces = (
        tokenizer.decode_bytes(train_ids[start : start + piece])
        for start in range(0, len(train_ids), piece)
    )
    return {
        "yardsticks": baseline_bits(train_pieces, tokenizer.decode_bytes(val_ids)),
        "unigram_nats": unigram_nats(train_ids, val_ids, tokenizer.vocab),
    }


def _publish(building: Path, folder: Path) -> Corpus:
    """Rename a finished folder. The first builder wins; others use its folder unless damaged."""
    while True:
        try:
            building.rename(folder)
        except OSError:
            if not folder.exists():
                raise
        try:
            return cache_format.read(folder)
        except CorruptCacheError as error:
            if not building.exists():
                raise ZooError(
                    f"the token cache {folder} cannot be read back ({error}): start again"
                ) from error
            damaged = building.with_suffix(".damaged")
            folder.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)


def _writable(root: Path) -> Path:
    """The cache's root, or a temporary folder where it cannot be written."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
        return root
    except OSError as error:
        temporary = Path(tempfile.mkdtemp(prefix="transformer-zoo-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        log.warning(
            f"the token cache {root} cannot be written ({error.strerror}), so this run uses"
            f" {temporary}"
        )
        return temporary
