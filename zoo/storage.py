"""Files that must be whole, and files that come from elsewhere: atomic writes, and checkpoints that are read safely."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.registry import ZooError, first_line


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a whole file or none: a temporary sibling, flushed to disk, then renamed over the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def is_first_process() -> bool:
    """Whether this process, of those that train together, is the one that writes and speaks."""
    return int(os.environ.get("LOCAL_RANK", 0)) == 0 and int(os.environ.get("RANK", 0)) == 0


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False, default=str).encode())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is no readable file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def find_checkpoint(path: str | Path) -> Path:
    """The file meant by a path: a checkpoint, or a run's folder, of which the best is taken, or else the last."""
    path = Path(path)
    if path.is_file():
        return path
    for name in ("checkpoints/best.ckpt", "checkpoints/last.ckpt", "best.ckpt", "last.ckpt"):
        if (path / name).is_file():
            return path / name
    raise ZooError(f"no checkpoint at {str(path)!r}: give a .ckpt file, or a run's folder that has checkpoints/ in it")


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint of this zoo as plain data and tensors, never as code.

    Raises ZooError for a file that is damaged, holds anything but tensors and plain data, or is not of this zoo.
    """
    import pickle

    import torch

    path = find_checkpoint(path)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and path.read_bytes().startswith((b"PK", b"\x80")):
            raise ZooError(f"refused {path}: it holds more than tensors and plain data, and could run code") from error
        raise ZooError(f"{path} is damaged or not a checkpoint ({first_line(error).split('. ')[0]})") from error
    if not isinstance(checkpoint, dict) or not {"zoo", "state_dict"} <= checkpoint.keys():
        raise ZooError(f"{path} is not a checkpoint of this zoo: it does not say of which configuration it is")
    return checkpoint


def load_model(path: str | Path, device: str = "cpu") -> tuple[Any, Any, dict[str, Any]]:
    """The trained model, its tokenizer and its configuration, from a run's folder or a checkpoint file.

    Raises ZooError where the weights do not fit the configuration they came with, naming the first that does not.
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
    return model.eval(), tokenizer, config


def weights(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own part of a LightningModule's state."""
    state = checkpoint["state_dict"]
    return {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}


def check_fit(model: Any, weights: Mapping[str, Any], source: str) -> None:
    """Raises ZooError naming the first weight that is missing, superfluous or of another shape."""
    ours = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in dict.fromkeys([*ours, *theirs]):
        if ours.get(name) != theirs.get(name):
            ours_, theirs_ = ours.get(name, "no such weight"), theirs.get(name, "no such weight")
            raise ZooError(f"{source} does not fit its configuration: {name} is {theirs_} there and {ours_} here")
