"""Writes whole files or none, reads JSON that may be missing or damaged, and hashes files."""

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
    """Write a whole file or none: a temporary sibling, flushed to disk, then renamed over the old.

    An old last.ckpt is kept, as previous.ckpt.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with name_in_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _keep_previous(path)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError; that of a full disk lacks it."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def _keep_previous(path: Path) -> None:
    if path.name == "last.ckpt" and path.exists():
        os.replace(path, path.with_name("previous.ckpt"))


def repoint(path: Path, folder: Path) -> None:
    """Point a path at a folder beside it, atomically, by a link.

    Folders that neither it nor previous.ckpt points at any more are deleted.
    """
    link = path.with_name(f"{folder.name}.link")
    link.symlink_to(folder.name)
    _keep_previous(path)
    os.replace(link, path)
    in_use = [link.resolve() for link in (path, path.with_name("previous.ckpt"))]
    for old in path.parent.glob(f".{path.name}.*"):
        if old.resolve() in in_use:
            continue
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object, as a whole or not at all."""
    text = json.dumps(content, indent=2, ensure_ascii=False, default=str)
    # A file name that is not UTF-8 is written as \udcff, which is JSON as well.
    write_atomically(path, text.encode(errors="backslashreplace"))


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
