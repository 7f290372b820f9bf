"""Finds the options by which two models differ in what they compute."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from zoo import registry
from zoo.errors import ZooError
from zoo.hf.reading import GROUPS, set_option
from zoo.nn.attention import MultiHead

# Attributes of modules that play no part in what is computed.
UNSEEN = ("training", "checkpointing", "cost", "balance_loss", "z_loss", "bias_rate")


def build_on_meta(config: dict[str, Any]) -> Any:
    """A model of this configuration, without weights."""
    with torch.device("meta"):
        model = registry.build("arch", config["arch"], config)
    model.config = config
    return model


def differing_options(model: Any, other: Any) -> list[str]:
    """The options of a model that would change what another one computes."""
    anatomy, differing = _anatomy(other), list[str]()
    differing_keys = _differing_keys(_anatomy(model), anatomy)
    if not differing_keys:
        return []
    ours, theirs = options_of(model), options_of(other)
    for option, value in ours.items():
        other_value = theirs.get(option)
        is_part = option.partition(".")[2] in ("", "name")
        within_a_found_one = any(
            option.startswith(f"{found.partition('=')[0]}.") for found in differing
        )
        if is_part or within_a_found_one or _same(value, other_value):
            continue
        if _same_component(value, other_value):
            continue  # its own options come after it
        if _changes(option, value, other, anatomy):
            shown = value["name"] if isinstance(value, Mapping) else value
            differing.append(option if isinstance(value, list) else f"{option}={shown}")
    return differing or differing_keys[:4]


def _same_component(one: Any, other: Any) -> bool:
    both = isinstance(one, Mapping) and isinstance(other, Mapping)
    return both and one["name"] == other["name"]


def _changes(option: str, value: Any, model: Any, anatomy: Mapping[str, Any]) -> bool:
    """Whether this value of an option changes what a model computes."""
    config = copy.deepcopy(model.config)
    set_option(config, option, value)
    try:
        return bool(_differing_keys(_anatomy(build_on_meta(config)), anatomy))
    except ZooError:
        return True


def _differing_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [key for key in sorted({*one, *other}) if not _same(one.get(key), other.get(key))]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def options_of(model: Any) -> dict[str, Any]:
    """A configuration's dotted options, with the values that components chose for open ones."""
    options = _flat("", {group: registry.resolve(group, model.config[group]) for group in GROUPS})
    last = model.stacks[0].blocks[-1]  # the first layers of a mixture of experts may be dense
    attention = next((module for module in last.modules() if isinstance(module, MultiHead)), None)
    if attention is not None:
        options["attn.head_dim"] = attention.head_dim
        options["attn.scale"] = attention.scale
        options["attn.kv_heads"] = attention.kv_heads
    for path, module in last.named_modules():
        in_ffn = path.startswith(("ffn.", "both.sublayer.ffn")) and ".shared" not in path
        if in_ffn and hasattr(module, "out"):
            option = "ffn.expert.hidden" if ".experts." in path else "ffn.hidden"
            options[option] = module.out.in_features
    if options.get("arch.decoder_layers", 1) is None:
        options["arch.decoder_layers"] = options["arch.layers"]
    return options


def _flat(prefix: str, node: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in node.items():
        flat[f"{prefix}{key}"] = value
        if isinstance(value, Mapping):
            flat |= _flat(f"{prefix}{key}.", value)
    return flat


def _anatomy(model: nn.Module) -> dict[str, Any]:
    """Everything but the weights that decides what a model computes: modules, constants, shapes."""
    anatomy: dict[str, Any] = {
        name: tuple(tensor.shape) for name, tensor in model.state_dict().items()
    }
    for path, module in model.named_modules():
        anatomy[path] = type(module).__name__
        for key, value in vars(module).items():
            constant = isinstance(value, int | float | str | tuple | None)
            if constant and key not in UNSEEN and not key.startswith("_"):
                anatomy[f"{path}.{key}"] = value
            elif key == "act":
                anatomy[f"{path}.{key}"] = repr(value)
            elif key == "scaling":
                settings = getattr(value, "__dict__", {}).items()
                anatomy[f"{path}.{key}"] = (type(value).__name__, *settings)
    return anatomy
