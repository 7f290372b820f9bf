"""Writes whole files or none, reads JSON that may be missing or damaged, and hashes files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def write_atomically(
    path: Path, content: bytes | memoryview, keep_old_as: Path | None = None
) -> None:
    """Write a whole file or none: a temporary sibling, flushed to disk, then renamed over the old.

    The old one can be kept under another name.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with name_in_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if keep_old_as and path.exists():
                os.replace(path, keep_old_as)
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
