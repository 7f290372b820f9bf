"""Writes whole files or none, and reads JSON that may be missing or damaged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a whole file or none: a temporary sibling, flushed to disk, then renamed over the old one.

    Of last.ckpt the one before is kept, as previous.ckpt.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _keep(path)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error say which file it is about, which that of a full disk does not."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def _keep(path: Path) -> None:
    if path.name == "last.ckpt" and path.exists():
        os.replace(path, path.with_name("previous.ckpt"))


def point(path: Path, folder: Path) -> None:
    """Let a path name a folder beside it, all at once, and delete those that neither it nor previous.ckpt names any more."""
    link = path.with_name(f"{folder.name}.link")
    link.symlink_to(folder.name)
    _keep(path)
    os.replace(link, path)
    named = [place.resolve() for place in (path, path.with_name("previous.ckpt"))]
    for old in path.parent.glob(f".{path.name}.*"):
        if old.resolve() not in named:
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False, default=str)
    write_atomically(
        path, text.encode(errors="backslashreplace")
    )  # \udcff, of a name that is not UTF-8, is JSON as well


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is no readable file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
