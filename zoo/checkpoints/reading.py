"""Files that must be whole, and files that come from elsewhere: atomic writes, and checkpoints that are read safely."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

from zoo.errors import ZooError, first_line

FORMAT = 1  # of checkpoints: to be raised when an older zoo would misread what a newer one writes
OWN_ROWS, PARTS = (
    "own rows",
    "parts",
)  # of a checkpoint of several processes: what marks a tensor in it, how many files it is


class Damaged(ZooError):
    """A checkpoint that cannot be read, not as it was written, or that no run could go on from."""


def find_checkpoint(path: str | Path) -> Path:
    """The file meant by a path: a checkpoint, or a run's folder, of which the best is taken, or else the last."""
    path = Path(path)
    if path.is_file() or any(path.glob("[0-9]*.pt")):
        return path
    for place in (path / "checkpoints", path):
        for name in ("best.ckpt", "last.ckpt", "previous.ckpt"):
            if (place / name).exists():
                return place / name
    raise ZooError(
        f"no checkpoint at {str(path)!r}: give a .ckpt file, or a run's folder that has checkpoints/ in it"
    )


class Rows:
    """A tensor of which each of several processes has saved some rows."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(len(part) for part in self.parts), *self.parts[0].shape[1:])

    def whole(self) -> Any:
        import torch

        return torch.cat(self.parts)


def dumps(checkpoint: dict[str, Any]) -> memoryview:
    """The content of a checkpoint's file."""
    import torch

    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    return buffer.getbuffer()


def rows(tensor: Any) -> dict[str, Any]:
    """How a process's rows of a tensor stand in its file."""
    return {OWN_ROWS: tensor.contiguous()}


def _joined(parts: list[Any], whole: bool) -> Any:
    """What several processes have saved, as one would have: what is not in rows is the same for all of them."""
    first = parts[0]
    if isinstance(first, dict) and first.keys() == {OWN_ROWS}:
        found = Rows([part[OWN_ROWS] for part in parts])
        return found.whole() if whole else found
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts], whole) for key in first}
    if isinstance(first, list):
        return [_joined(list(items), whole) for items in zip(*parts, strict=True)]
    return first


def read_checkpoint(path: str | Path, whole: bool = True) -> dict[str, Any]:
    """A checkpoint of this zoo as plain data and tensors, never as code; of several processes (a folder), their parts joined.

    Their tensors are mapped, not read, and with `whole=False` left as Rows. Raises Damaged for a file that is, and ZooError for
    one that holds anything but tensors and plain data, is not of this zoo, or of a newer one.
    """
    path = Path(path)
    if (
        path.suffix == ".ckpt"
        and os.path.lexists(path)
        and not path.is_file()
        and not any(path.glob("*.pt"))
    ):
        raise Damaged(f"{path} is damaged: what it is made of is gone")
    path = find_checkpoint(path)
    if path.is_dir():
        first = _read(path / "0.pt", mapped=True)
        if not isinstance(first.get(PARTS), int):
            raise Damaged(f"{path} is damaged: it does not say of how many parts it is")
        return _joined(
            [first, *(_read(path / f"{rank}.pt", mapped=True) for rank in range(1, first[PARTS]))],
            whole,
        )
    return _read(path)


def is_whole(path: Path) -> bool:
    """Whether what a checkpoint's file holds fits its checksums, which torch writes and does not look at."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def _read(path: Path, mapped: bool = False) -> dict[str, Any]:
    import pickle

    import torch

    try:
        if not mapped and zipfile.is_zipfile(path) and not is_whole(path):
            raise Damaged(f"{path} is damaged: a checksum differs")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Damaged:
        raise
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and path.read_bytes().startswith(
            (b"PK", b"\x80")
        ):
            raise ZooError(
                f"refused {path}: it holds more than tensors and plain data, and could run code"
            ) from error
        raise Damaged(
            f"{path} is damaged or not a checkpoint ({first_line(error).split('. ')[0]})"
        ) from error
    about = checkpoint.get("zoo") if isinstance(checkpoint, dict) else None
    if isinstance(about, dict) and about.get("format", 1) != FORMAT:
        raise ZooError(
            f"{path} is of format {about['format']}, which a newer version of this zoo has written; this one reads"
            f" format {FORMAT}: install the newer one"
        )
    if (
        not isinstance(about, dict)
        or not {"config", "tokenizer"} <= about.keys()
        or "state_dict" not in checkpoint
    ):
        raise ZooError(
            f"{path} is not a checkpoint of this zoo: it does not say of which configuration it is"
        )
    return checkpoint
