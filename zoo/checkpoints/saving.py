"""Saves checkpoints, keeping the one before last.ckpt as previous.ckpt."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path
from typing import Any

from zoo.checkpoints.reading import OWN_ROWS
from zoo.utils import files


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write a checkpoint, as a whole or not at all."""
    files.write_atomically(path, dumps(checkpoint), keep_old_as=_kept_as(path))


def dumps(checkpoint: dict[str, Any]) -> memoryview:
    """The content of a checkpoint's file."""
    import torch

    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    return buffer.getbuffer()


def rows(tensor: Any) -> dict[str, Any]:
    """A rank's rows of a tensor, as they stand in its file."""
    return {OWN_ROWS: tensor.contiguous()}


def repoint(path: Path, folder: Path) -> None:
    """Point a checkpoint at a folder beside it, atomically, by a link.

    Folders that neither it nor previous.ckpt points at any more are deleted.
    """
    link = path.with_name(f"{folder.name}.link")
    link.symlink_to(folder.name)
    kept = _kept_as(path)
    if kept and path.exists():
        os.replace(path, kept)
    os.replace(link, path)
    in_use = [link.resolve() for link in (path, path.with_name("previous.ckpt"))]
    for old in path.parent.glob(f".{path.name}.*"):
        if old.resolve() in in_use:
            continue
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()


def _kept_as(path: Path) -> Path | None:
    return path.with_name("previous.ckpt") if path.name == "last.ckpt" else None
