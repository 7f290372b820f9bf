"""Loads a transformers model from a folder or name, safetensors only, or says what is wrong."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from zoo.errors import ZooError, did_you_mean
from zoo.hf.tables import FAMILIES

CLASSES = list(dict.fromkeys(key.split()[0] for key in FAMILIES))
OTHER_FORMATS = (".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".ckpt")


def load(path: object) -> nn.Module:
    """The model, in the class that config.json names.

    Raises ZooError for a folder that is damaged or incomplete, and for what the zoo has no
    counterpart of.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ZooError(
            "from_hf takes a model of transformers, a folder or a name on huggingface.co, not"
            f" {path!r}"
        )
    folder = Path(path)
    if folder.is_dir():
        _check_config(folder)
    elif folder.exists():
        raise ZooError(f"{path} is a file: give the folder that config.json is in")
    elif not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", os.fspath(path)):
        raise ZooError(f"there is no folder {path}, and it cannot be a name on huggingface.co")
    import transformers

    config = _call(path, transformers.AutoConfig.from_pretrained)
    name = _class_name(path, config)
    if folder.is_dir():
        _check_weights(folder, name)
    model, loading = _call(
        path,
        getattr(transformers, name).from_pretrained,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    _check_complete(path, model, loading)
    return model


def _call(path: str | os.PathLike[str], from_pretrained: Callable[..., Any], **options: Any) -> Any:
    """Call transformers, whose classes each raise in their own way, and raise ZooError instead."""
    try:
        return from_pretrained(path, trust_remote_code=False, **options)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        if Path(path).is_dir():
            raise ZooError(f"{path}: transformers cannot load it: {reason}") from error
        reason = f"transformers says: {reason}"
        if os.environ.get("HF_HUB_OFFLINE", "0") not in ("0", ""):
            reason = "HF_HUB_OFFLINE forbids downloads: unset it"
        raise ZooError(
            f"{path} is no folder here, and cannot be loaded from huggingface.co: {reason}"
        ) from error


def _check_config(folder: Path) -> None:
    if not any(folder.iterdir()):
        raise ZooError(f"{folder} is empty: give a folder with config.json and the weights")
    file = folder / "config.json"
    if not file.is_file():
        hint = ""
        if (folder / "checkpoints").is_dir():
            hint = ": a run of the zoo is loaded by python -m zoo.generate"
        raise ZooError(f"{folder} has no config.json, by which transformers knows a model{hint}")
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise ZooError(f"{file} is damaged: it is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ZooError(f"{file} is damaged: it is not a JSON object")
    if "model_type" not in content:
        raise ZooError(f"{file} does not say its model_type, by which transformers knows a model")
    classes = content.get("architectures") or []
    are_names = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    if not isinstance(classes, str) and not are_names:
        raise ZooError(
            f"{file} is damaged: architectures must be a list of class names, not {classes!r}"
        )


def _class_name(path: str | os.PathLike[str], config: Any) -> str:
    """The class that the configuration names, or the only one of its type here."""
    named = config.architectures
    if not named:
        return _only_class(path, config)
    named = [named] if isinstance(named, str) else [str(name) for name in named]
    known = [name for name in named if name in CLASSES]
    if len(known) != 1:
        shown = ", ".join(named)
        raise ZooError(
            f"{path}: {shown} has no counterpart in the zoo{did_you_mean(shown, CLASSES)}"
        )
    return known[0]


def _only_class(path: str | os.PathLike[str], config: Any) -> str:
    """The only class here that has this type of configuration."""
    fitting = [
        key.split()[0] for key, family in FAMILIES.items() if family.config == type(config).__name__
    ]
    classes = list(dict.fromkeys(fitting))
    if len(classes) == 1:
        return classes[0]
    missing = f"{path}: config.json names no architectures, and model_type={config.model_type}"
    if not classes:
        raise ZooError(f"{missing} has no counterpart in the zoo{did_you_mean('', CLASSES)}")
    choices = " or ".join(f'"architectures": ["{name}"]' for name in classes)
    raise ZooError(f"{missing} is that of several classes: write {choices} into it")


def _check_weights(folder: Path, name: str) -> None:
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    elif index.is_file():
        files = [folder / shard for shard in _shards(index)]
    else:
        raise _no_weights(folder, name)
    from safetensors import SafetensorError, safe_open

    for file in files:
        if not file.is_file():
            raise ZooError(
                f"{folder} is incomplete: {index.name} names {file.name}, which is not there"
            )
        with file.open("rb") as content:
            is_pointer = content.read(40).startswith(b"version https://git-lfs")
        if is_pointer:
            raise ZooError(f"{file} is a Git LFS pointer, not the weights: git lfs pull gets them")
        try:
            with safe_open(file, framework="pt"):
                pass
        except SafetensorError as error:
            raise ZooError(f"{file} is damaged or cut off ({error}): get it again") from None


def _no_weights(folder: Path, name: str) -> ZooError:
    """The error for a folder without weights in safetensors."""
    others = sorted(file.name for file in folder.iterdir() if file.suffix in OTHER_FORMATS)
    if not others:
        return ZooError(
            f"{folder} has no weights: there is no model.safetensors beside config.json"
        )
    advice = "convert them with the program that wrote them"
    if any(other.endswith(".bin") for other in others):
        load_and_save = f"from_pretrained({str(folder)!r}).save_pretrained(NEW_FOLDER)"
        advice = f"transformers.{name}.{load_and_save} converts them"
    return ZooError(
        f"{folder} has its weights as {others[0]} alone, and only safetensors are read, which"
        f" cannot run code: if you trust the file, {advice}"
    )


def _shards(index: Path) -> list[str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        return list(dict.fromkeys(str(file) for file in weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ZooError(
            f"{index} is damaged: it does not say which weights are in which file ({error})"
        ) from None


def _check_complete(
    path: str | os.PathLike[str], model: nn.Module, loading: dict[str, Any]
) -> None:
    """Check that each weight was there, and none of a layer beyond the configuration's."""
    if missing := sorted(loading["missing_keys"]):
        raise ZooError(
            f"{path} lacks {', '.join(missing[:3])}: transformers would initialise them at random"
        )
    for key, shape, expected in loading["mismatched_keys"]:
        raise ZooError(f"{path}: {key} is {tuple(shape)}, and config.json means {tuple(expected)}")
    own = {re.sub(r"\d+", "*", key) for key in model.state_dict()}
    unexpected = loading["unexpected_keys"]
    if extra := sorted(key for key in unexpected if re.sub(r"\d+", "*", key) in own):
        raise ZooError(
            f"{path} has {', '.join(extra[:3])}, which config.json does not count: its number of"
            " layers is another"
        )
