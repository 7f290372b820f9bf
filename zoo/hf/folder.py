"""Loads a model of transformers from a folder or a name, whole and from safetensors only, or says what is wrong with it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from zoo.errors import ZooError, did_you_mean
from zoo.hf.tables import FAMILIES

CLASSES = list(dict.fromkeys(key.split()[0] for key in FAMILIES))
OTHERS = (
    ".bin",
    ".pt",
    ".pth",
    ".h5",
    ".msgpack",
    ".gguf",
    ".ckpt",
)  # forms of weights that are not read


def load(path: Any) -> nn.Module:
    """The model, in the class that config.json names.

    Raises ZooError for a folder that is damaged or incomplete, and for what the zoo has no counterpart of.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ZooError(
            f"from_hf takes a model of transformers, a folder or a name on huggingface.co, not {path!r}"
        )
    folder = Path(path)
    if folder.is_dir():
        _check_config(folder)
    elif folder.exists():
        raise ZooError(f"{path} is a file: give the folder that config.json lies in")
    elif not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", os.fspath(path)):
        raise ZooError(f"there is no folder {path}, and no name on huggingface.co is written so")
    import transformers

    config = _told(path, transformers.AutoConfig.from_pretrained)
    name = _class_name(path, config)
    if folder.is_dir():
        _check_weights(folder, name)
    model, loading = _told(
        path,
        getattr(transformers, name).from_pretrained,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    _check_complete(path, model, loading)
    return model


def _told(path: Any, read: Any, **how: Any) -> Any:
    """What transformers reads there; its classes refuse each in its own way what they cannot."""
    try:
        return read(path, trust_remote_code=False, **how)
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        if Path(path).is_dir():
            raise ZooError(f"{path}: transformers cannot load it: {said}") from error
        offline = "HF_HUB_OFFLINE" in os.environ and os.environ["HF_HUB_OFFLINE"] not in ("0", "")
        way = (
            "HF_HUB_OFFLINE keeps it from being asked for there: unset it"
            if offline
            else f"transformers says: {said}"
        )
        raise ZooError(
            f"{path} is no folder here, and cannot be loaded from huggingface.co: {way}"
        ) from error


def _check_config(folder: Path) -> None:
    if not any(folder.iterdir()):
        raise ZooError(f"{folder} is empty: give a folder with config.json and the weights")
    file = folder / "config.json"
    if not file.is_file():
        hint = (
            ": a run of the zoo is loaded by python -m zoo.generate"
            if (folder / "checkpoints").is_dir()
            else ""
        )
        raise ZooError(f"{folder} has no config.json, by which transformers knows a model{hint}")
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise ZooError(f"{file} is damaged: it is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ZooError(f"{file} is damaged: it is not a JSON object")
    if "model_type" not in content:
        raise ZooError(f"{file} does not say its model_type, by which transformers knows a model")
    named = content.get("architectures") or []
    if not isinstance(named, str) and not (
        isinstance(named, list) and all(isinstance(name, str) for name in named)
    ):
        raise ZooError(
            f"{file} is damaged: architectures must be a list of class names, not {named!r}"
        )


def _class_name(path: Any, config: Any) -> str:
    """The class that the configuration names, or the only one of its kind here."""
    named = config.architectures
    if not named:
        fit = [
            name
            for name in CLASSES
            if any(
                family.config == type(config).__name__ and key.split()[0] == name
                for key, family in FAMILIES.items()
            )
        ]
        if len(fit) == 1:
            return fit[0]
        choice = " or ".join(f'"architectures": ["{name}"]' for name in fit)
        ending = f": write {choice} into it" if fit else did_you_mean("", CLASSES)
        raise ZooError(
            f"{path}: config.json names no architectures, and model_type={config.model_type} is of"
            f" {'several' if fit else 'none'} that the zoo has{ending}"
        )
    known = [
        name for name in ([named] if isinstance(named, str) else map(str, named)) if name in CLASSES
    ]
    if len(known) != 1:
        told = named if isinstance(named, str) else ", ".join(map(str, named))
        raise ZooError(f"{path}: {told} has no counterpart in the zoo{did_you_mean(told, CLASSES)}")
    return known[0]


def _check_weights(folder: Path, name: str) -> None:
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    elif index.is_file():
        files = [folder / str(part) for part in _shards(index)]
    else:
        others = sorted(file.name for file in folder.iterdir() if file.suffix in OTHERS)
        if not others:
            raise ZooError(
                f"{folder} has no weights: there is no model.safetensors beside config.json"
            )
        pickled = any(other.endswith(".bin") for other in others)
        way = (
            f"transformers.{name}.from_pretrained({str(folder)!r}).save_pretrained(NEW_FOLDER)"
            if pickled
            else "convert them with the program that they are of"
        )
        raise ZooError(
            f"{folder} has its weights as {others[0]} alone, and only safetensors are read, which cannot run code:"
            f" where you trust the file, {way} {'writes them so' if pickled else ''}".rstrip()
        )
    from safetensors import SafetensorError, safe_open

    for file in files:
        if not file.is_file():
            raise ZooError(
                f"{folder} is incomplete: {index.name} names {file.name}, which is not there"
            )
        with file.open("rb") as content:
            if content.read(40).startswith(b"version https://git-lfs"):
                raise ZooError(
                    f"{file} is a Git LFS pointer, not the weights: git lfs pull gets them"
                )
        try:
            with safe_open(file, framework="pt"):
                pass
        except SafetensorError as error:
            raise ZooError(f"{file} is damaged or cut off ({error}): get it again") from None


def _shards(index: Path) -> Iterable[Any]:
    try:
        return dict.fromkeys(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ZooError(
            f"{index} is damaged: it does not say which weights are in which file ({error})"
        ) from None


def _check_complete(path: Any, model: nn.Module, loading: Any) -> None:
    """Each weight of the model was there, and none of a layer that the configuration does not count."""
    if lacking := sorted(loading["missing_keys"]):
        raise ZooError(
            f"{path} lacks {', '.join(lacking[:3])}: transformers would make them up at random"
        )
    for key, given, wanted in loading["mismatched_keys"]:
        raise ZooError(f"{path}: {key} is {tuple(given)}, and config.json means {tuple(wanted)}")
    own = {re.sub(r"\d+", "*", key) for key in model.state_dict()}
    if extra := sorted(
        key for key in loading["unexpected_keys"] if re.sub(r"\d+", "*", key) in own
    ):
        raise ZooError(
            f"{path} has {', '.join(extra[:3])}, which config.json does not count: its number of layers is another"
        )
