"""Reads checkpoints as tensors and plain data, never as code, and says what is wrong with one."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

from zoo.errors import ZooError, first_line

FORMAT = 1  # of checkpoints: to be raised when an older zoo would misread what a newer one writes
# in a checkpoint of several ranks: what marks a tensor's rows, and how many files there are
OWN_ROWS = "own rows"
PARTS = "parts"


class Damaged(ZooError):
    """A checkpoint that is not as it was written, or that no run could be resumed from."""


def find_checkpoint(path: str | Path) -> Path:
    """The file that a path means: a checkpoint, or of a run's folder the best one, or the last."""
    path = Path(path)
    if path.is_file() or any(path.glob("[0-9]*.pt")):
        return path
    for place in (path / "checkpoints", path):
        for name in ("best.ckpt", "last.ckpt", "previous.ckpt"):
            if (place / name).exists():
                return place / name
    raise ZooError(
        f"no checkpoint at {str(path)!r}: give a .ckpt file, or a run's folder that has"
        " checkpoints/ in it"
    )


class Rows:
    """A tensor of which each rank has saved some rows."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(len(part) for part in self.parts), *self.parts[0].shape[1:])

    def whole(self) -> Any:
        import torch

        return torch.cat(self.parts)


def read_checkpoint(path: str | Path, whole: bool = True) -> dict[str, Any]:
    """Read a checkpoint; of one that several ranks saved (a folder), join the parts.

    The tensors of such parts are memory-mapped, and with `whole=False` left as Rows. Raises
    Damaged for a file that cannot be read, and ZooError for one that holds anything but tensors
    and plain data, is not of this zoo, or of a newer one.
    """
    path = Path(path)
    dangling = os.path.lexists(path) and not path.is_file() and not any(path.glob("*.pt"))
    if path.suffix == ".ckpt" and dangling:
        raise Damaged(f"{path} is damaged: what it is made of is gone")
    path = find_checkpoint(path)
    if not path.is_dir():
        return _read(path)
    first = _read(path / "0.pt", mapped=True)
    if not isinstance(first.get(PARTS), int):
        raise Damaged(f"{path} is damaged: it does not say of how many parts it is")
    others = [_read(path / f"{rank}.pt", mapped=True) for rank in range(1, first[PARTS])]
    joined: dict[str, Any] = _joined([first, *others], whole)
    return joined


def _joined(parts: list[Any], whole: bool) -> Any:
    """The parts of all ranks as one; what is not in rows is the same in all of them."""
    first = parts[0]
    if isinstance(first, dict) and first.keys() == {OWN_ROWS}:
        rows = Rows([part[OWN_ROWS] for part in parts])
        return rows.whole() if whole else rows
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts], whole) for key in first}
    if isinstance(first, list):
        return [_joined(list(items), whole) for items in zip(*parts, strict=True)]
    return first


def is_whole(path: Path) -> bool:
    """Whether a checkpoint's file fits its checksums, which torch writes but does not verify."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _read(path: Path, mapped: bool = False) -> dict[str, Any]:
    if not mapped and zipfile.is_zipfile(path) and not is_whole(path):
        raise Damaged(f"{path} is damaged: a checksum differs")
    checkpoint = _load(path, mapped)
    about = checkpoint.get("zoo") if isinstance(checkpoint, dict) else None
    if isinstance(about, dict) and about.get("format", 1) != FORMAT:
        raise ZooError(
            f"{path} is of format {about['format']}, which a newer version of this zoo has written;"
            f" this one reads format {FORMAT}: install the newer one"
        )
    complete = isinstance(about, dict) and {"config", "tokenizer"} <= about.keys()
    if not complete or "state_dict" not in checkpoint:
        raise ZooError(
            f"{path} is not a checkpoint of this zoo: it does not say of which configuration it is"
        )
    return dict(checkpoint)


def _load(path: Path, mapped: bool) -> Any:
    import pickle

    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        refused = isinstance(error, pickle.UnpicklingError)
        if refused and path.read_bytes().startswith((b"PK", b"\x80")):
            raise ZooError(
                f"refused {path}: it holds more than tensors and plain data, and could run code"
            ) from error
        reason = first_line(error).split(". ")[0]
        raise Damaged(f"{path} is damaged or not a checkpoint ({reason})") from error
