"""Files that must be whole, and files that come from elsewhere: atomic writes, and checkpoints that are read safely."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zoo.progress import is_first_process as is_first_process
from zoo.registry import ZooError, first_line

FORMAT = 1  # of checkpoints: to be raised when an older zoo would misread what a newer one writes
LARGEST = (
    2.0**63
)  # of a weight: of a larger one, float32 can hardly hold the square, which norms take
Learned = tuple[str, Any, float]  # a name, a tensor, and below what its numbers have to be
OWN_ROWS, PARTS = (
    "own rows",
    "parts",
)  # of a checkpoint of several processes: what marks a tensor in it, how many files it is


class Damaged(ZooError):
    """A checkpoint that cannot be read, not as it was written, or that no run could go on from."""


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


def started_together() -> bool:
    """Whether something outside, as srun or torchrun, has started several processes that train together."""
    return max(int(os.environ.get("SLURM_NTASKS", 1)), int(os.environ.get("WORLD_SIZE", 1))) > 1


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


def load_model(path: str | Path, device: str = "cpu") -> tuple[Any, Any, dict[str, Any]]:
    """The trained model, its tokenizer and its configuration, from a run's folder or a checkpoint file.

    Raises ZooError where the weights do not fit the configuration they came with, or are not finite, naming the first of them.
    """
    from zoo import config as configuration
    from zoo import models
    from zoo.data import tokenizer as tokenizers

    checkpoint = read_checkpoint(path)
    configuration.discover()
    config, saved = checkpoint["zoo"]["config"], checkpoint["zoo"]["tokenizer"]
    tokenizer = tokenizers.loads(saved)
    model = models.build(config, device="meta").to_empty(device=device)
    check_fit(model, weights(checkpoint), str(path))
    model.load_state_dict(weights(checkpoint))
    refuse_not_finite(parameters(model), path)
    return model.eval(), tokenizer, config


def weights(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own part of a LightningModule's state."""
    state = checkpoint["state_dict"]
    return {
        name.removeprefix("model."): tensor
        for name, tensor in state.items()
        if name.startswith("model.")
    }


def learned(checkpoint: Mapping[str, Any], model: Any) -> Iterator[Learned]:
    """What training has made of a model: its parameters, and what the optimiser keeps of them, each under a name for people.

    Not its buffers: a constant among them, as a mask, may be infinite.
    """
    found = weights(checkpoint)
    yield from ((name, found[name], bound) for name, _, bound in parameters(model) if name in found)
    for optimizer in checkpoint.get("optimizer_states") or ():
        for state in optimizer["state"].values():
            tensors = {name: value for name, value in state.items() if hasattr(value, "shape")}
            yield from (
                (f"the optimiser's {name}", tensor, math.inf) for name, tensor in tensors.items()
            )


def parameters(model: Any) -> Iterator[Learned]:
    yield from ((name, parameter, LARGEST) for name, parameter in model.named_parameters())


def not_finite(tensors: Iterable[Learned]) -> str | None:
    """The name of the first tensor that holds NaN, infinity, or too large a number; by its extremes, in one pass."""
    import torch

    for name, tensor, bound in tensors:
        for part in getattr(tensor, "parts", [tensor]):
            if part.is_floating_point() and part.numel():
                low, high = (extreme.item() for extreme in torch.aminmax(part))
                if not -bound < low <= high < bound:
                    return name
    return None


def refuse_not_finite(tensors: Iterable[Learned], what: str | Path) -> None:
    """Raises Damaged for a checkpoint, or another source of weights, that is of a run that had diverged."""
    name = not_finite(tensors)
    if name is not None:
        raise Damaged(
            f"{what} is of a run that had diverged: {name} holds NaN, infinity or a number near it"
        )


def check_fit(model: Any, weights: Mapping[str, Any], source: str) -> None:
    """Raises ZooError naming the first weight that is missing, superfluous or of another shape."""
    ours = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in dict.fromkeys([*ours, *theirs]):
        if ours.get(name) != theirs.get(name):
            ours_, theirs_ = ours.get(name, "no such weight"), theirs.get(name, "no such weight")
            raise ZooError(
                f"{source} does not fit its configuration: {name} is {theirs_} there and {ours_} here"
            )
