"""Loads a model of transformers from a folder or a name, safetensors only."""

from __future__ import annotations

from typing import Any

from torch import nn

from zoo import registry
from zoo.registry import ZooError


def load(path: Any) -> nn.Module:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
        (name,) = config.architectures
        return getattr(transformers, name).from_pretrained(path, use_safetensors=True, trust_remote_code=False)
    except (OSError, ValueError, AttributeError) as error:
        raise ZooError(f"{path}: transformers cannot load it: {registry.first_line(error)}") from error
