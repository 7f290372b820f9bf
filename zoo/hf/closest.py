"""Finds the class of transformers that computes what a model does, or says what stands in the way of the closest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from zoo import catalogue, extras, models, registry
from zoo import config as configuration
from zoo.attention import MultiHead
from zoo.hf.tables import FAMILIES, Family
from zoo.registry import ZooError, did_you_mean

UNSEEN = ("training", "checkpointing", "cost", "balance_loss", "z_loss", "bias_rate")  # no part of what is computed
MODEL = ("arch", "embed", "head", *models.LAYERED)


def family_of(theirs: Any) -> Family:
    name, config = type(theirs).__name__, theirs.config
    variants = [family for key, family in FAMILIES.items() if key.split()[0] == name]
    if not variants:
        raise ZooError(f"{name} has no counterpart in the zoo{did_you_mean(name, [key for key in FAMILIES if ' ' not in key])}")
    others = [{word: value for word, value in family.fixed.items() if getattr(config, word, value) != value}
              for family in variants]
    for family, other in zip(variants, others, strict=True):
        if not other:
            return family
    word, value = next(iter(others[0].items()))
    given = getattr(config, word)
    raise ZooError(f"{config.model_type} with {word}={given!r} has no counterpart in the zoo, only with {value!r}")


def read(family: Family, theirs: Any) -> dict[str, Any]:
    """The zoo's configuration of a transformers model."""
    words: dict[str, Any] = {key: getattr(theirs.config, name) for key, name in family.numbers.items()
                             if hasattr(theirs.config, name)}
    for field in family.fields:
        words |= field.read(theirs, words)
    config = configuration.compose([f"model={family.model.split()[0]}", *family.model.split()[1:]])
    for word, value in words.items():
        *path, last = word.split(".")
        node = config
        for key in path:
            if isinstance(node[key], str):
                node[key] = {"name": node[key]}
            node = node[key]
        node[last] = value
    for group in MODEL:
        config[group] = registry.resolve(group, config[group])
    return config


def counterpart(model: Any) -> tuple[str, Family, Any]:
    """The class of transformers whose configuration, read back, makes the same model."""
    extras.need("transformers", "zoo.hf")
    import transformers

    words, anatomy = _words(model), _anatomy(model)
    stands: dict[str, list[str]] = {}  # what stands in the way, by class
    for name, family in FAMILIES.items():
        parts = catalogue.parts(family.model.split()[0])
        parting = [f"{group}={words[f'{group}.name']}" for group in ("arch", "norm", "residual", "pos", "ffn")
                 if (group, words[f"{group}.name"]) not in parts]
        if parting:
            stands[name] = [*parting, *[""] * len(anatomy)]  # further away than any with the same parts
            continue
        try:
            values = {attribute: words[word] for word, attribute in family.numbers.items() if word in words}
            for field in family.fields:
                values |= field.write(words, model)
            with torch.device("meta"):
                config_class = getattr(transformers, family.config)
                known = vars(config_class())  # what the class does not know it would keep, and not heed
                heeded = {key: value for key, value in values.items() if key in known}
                # the class's own ids are of the vocabulary that it was made for
                foreign = {key: None for key in known if key.endswith("_token_id")}
                config = config_class(**{**foreign, **family.fixed, **heeded})
                theirs = getattr(transformers, name.split()[0])(config)
                if "head.weight" in dict(model.named_parameters()):
                    untie(theirs)
                ours = read(family, theirs)
                other = _anatomy(registry.build("arch", ours["arch"], ours))
        except Exception as error:  # transformers' classes refuse each in its own way what they are not made for
            stands[name] = [registry.first_line(error), *[""] * (len(anatomy) // 2)]
            continue
        stands[name] = [key for key in sorted({*anatomy, *other}) if not _same(anatomy.get(key), other.get(key))]
        if not stands[name]:
            return name, family, theirs
    closest = min(stands, key=lambda name: len(stands[name]))
    raise ZooError(f"transformers has no model like this one: what stands in the way of the closest, {closest}, is"
                   f" {', '.join(filter(None, stands[closest][:4]))}")


def _same(one: Any, other: Any) -> bool:
    both = isinstance(one, float) and isinstance(other, float)
    return math.isclose(one, other, rel_tol=1e-9) if both else one == other


def untie(theirs: Any) -> None:
    theirs.lm_head.weight = nn.Parameter(torch.empty_like(theirs.lm_head.weight))


def _words(model: Any) -> dict[str, Any]:
    """The configuration's words, dotted, with what the parts made of those that were left open."""
    flat: dict[str, Any] = {}

    def put(prefix: str, node: Mapping[str, Any]) -> None:
        for key, value in node.items():
            flat[f"{prefix}{key}"] = value
            if isinstance(value, Mapping):
                put(f"{prefix}{key}.", value)

    put("", {group: registry.resolve(group, model.config[group]) for group in MODEL})
    blocks = model.stacks[0].blocks
    attention = next((module for module in blocks[-1].modules() if isinstance(module, MultiHead)), None)
    if attention is not None:
        flat |= {"attn.head_dim": attention.width, "attn.scale": attention.scale, "attn.kv_heads": attention.kv_heads}
    for path, module in blocks[-1].named_modules():  # the last layer, as the first may be dense in a mixture
        if path.startswith(("ffn.", "both.sublayer.ffn")) and ".shared" not in path and hasattr(module, "out"):
            flat["ffn.expert.hidden" if ".experts." in path else "ffn.hidden"] = module.out.in_features
    if flat.get("arch.decoder_layers", 1) is None:
        flat["arch.decoder_layers"] = flat["arch.layers"]
    return flat


def _anatomy(model: nn.Module) -> dict[str, Any]:
    """All that decides what a model computes, but for the weights: its modules' kinds and constants, the weights' shapes."""
    found: dict[str, Any] = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for path, module in model.named_modules():
        found[path] = type(module).__name__
        for key, value in vars(module).items():
            if isinstance(value, int | float | str | tuple | None) and key not in UNSEEN and not key.startswith("_"):
                found[f"{path}.{key}"] = value
            elif key == "act":
                found[f"{path}.{key}"] = repr(value)
            elif key == "scaling":
                found[f"{path}.{key}"] = (type(value).__name__, *getattr(value, "__dict__", {}).items())
    return found
