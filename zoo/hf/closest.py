"""Finds the class of transformers that computes what a model does, or says what stands in the way of the closest."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from zoo import config as configuration
from zoo import errors, models, registry
from zoo.config import model_usage
from zoo.errors import ZooError, did_you_mean
from zoo.hf.tables import FAMILIES, Family
from zoo.nn.attention import MultiHead
from zoo.utils import extras

UNSEEN = (
    "training",
    "checkpointing",
    "cost",
    "balance_loss",
    "z_loss",
    "bias_rate",
)  # no part of what is computed
KINDS = {"mha": "gqa", "mqa": "gqa"}  # which are one with a number of KV heads
MODEL = ("arch", "embed", "head", *models.LAYERED)


def family_of(theirs: Any) -> Family:
    name, config = type(theirs).__name__, theirs.config
    variants = [family for key, family in FAMILIES.items() if key.split()[0] == name]
    if not variants:
        raise ZooError(
            f"{name} has no counterpart in the zoo{did_you_mean(name, [key for key in FAMILIES if ' ' not in key])}"
        )
    others = [
        {
            word: value
            for word, value in family.fixed.items()
            if getattr(config, word, value) != value
        }
        for family in variants
    ]
    for family, other in zip(variants, others, strict=True):
        if not other:
            return family
    word, value = next(iter(others[0].items()))
    given = getattr(config, word)
    raise ZooError(
        f"{config.model_type} with {word}={given!r} has no counterpart in the zoo, only with {value!r}"
    )


def read(family: Family, theirs: Any) -> dict[str, Any]:
    """The zoo's configuration of a transformers model."""
    words: dict[str, Any] = {
        key: getattr(theirs.config, name)
        for key, name in family.numbers.items()
        if hasattr(theirs.config, name)
    }
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
    names = {group: model.config[group]["name"] for group in MODEL}
    partings = {}  # of each class of the same architecture, the parts that are not its own
    for name, family in FAMILIES.items():
        own = _own_parts(family)
        if own["arch"] == names["arch"]:
            partings[name] = [
                group for group in MODEL if KINDS.get(names[group], names[group]) != own[group]
            ]
    closest: dict[
        tuple[str, ...], str
    ] = {}  # of the classes with the fewest obstacles, these and the class
    fewest = 2 * len(MODEL)
    for name, parting in sorted(partings.items(), key=lambda item: len(item[1])):
        if len(parting) > fewest:
            break
        near = _exchanged(model, FAMILIES[name], parting)
        theirs, others = _fit(name, near) if near is not None else (None, [])
        if not parting and not others:
            return name, FAMILIES[name], theirs
        stands = (*(f"{group}={names[group]}" for group in parting), *others)
        if len(stands) < fewest:
            closest, fewest = {}, len(stands)
        if len(stands) == fewest:
            closest.setdefault(stands, name.split()[0])
    (first, name), *as_close = (
        (", ".join(filter(None, stands)), name) for stands, name in closest.items()
    )
    raise ZooError(
        f"transformers has no model like this one: what stands in the way of the closest, {name}, is {first}"
        + "".join(f"; of {other}, {stands}" for stands, other in as_close)
    )


def _own_parts(family: Family) -> dict[str, str]:
    """The names of the parts that a class is made of."""
    model, *changes = family.model.split()
    chosen = model_usage.chosen(model) | dict(word.split("=") for word in changes)
    return {group: KINDS.get(chosen[group], chosen[group]) for group in MODEL}


def _exchanged(model: Any, family: Family, groups: Sequence[str]) -> Any:
    """The model, without weights, with a class's own parts in these groups; None where that is none."""
    if not groups:
        return model
    config, own = copy.deepcopy(model.config), _composed(family.model)
    for group in groups:
        kept = {
            key: value
            for key, value in config[group].items()
            if key in own[group] and key != "name"
        }
        config[group] = own[group] | kept
        for key in ("first", "pattern"):  # which change parts in some layers
            for layer, changes in enumerate(config["arch"][key]):
                its = own["arch"][key][layer] if layer < len(own["arch"][key]) else {}
                changes.pop(group, None)
                changes |= {part: change for part, change in its.items() if part == group}
    try:
        return models.build(config, device="meta")
    except ZooError:
        return None


@functools.cache
def _composed(model: str) -> dict[str, Any]:
    return configuration.compose([f"model={model.split()[0]}", *model.split()[1:], "size=tiny"])


def _fit(name: str, model: Any) -> tuple[Any, list[str]]:
    """A class's model, without weights, that is to be this one, and the options by which it is not."""
    import transformers

    family, words = FAMILIES[name], _words(model)
    try:
        values = {
            attribute: words[word] for word, attribute in family.numbers.items() if word in words
        }
        for field in family.fields:
            values |= field.write(words, model)
        with torch.device("meta"):
            config_class = getattr(transformers, family.config)
            known = vars(config_class())  # what the class does not know it would keep, and not heed
            heeded = {key: value for key, value in values.items() if key in known}
            # the class's own ids are of the vocabulary that it was made for
            foreign = {key: None for key in known if key.endswith("_token_id")}
            theirs = getattr(transformers, name.split()[0])(
                config_class(**{**foreign, **family.fixed, **heeded})
            )
            if "head.weight" in dict(model.named_parameters()):
                untie(theirs)
            back = _made(read(family, theirs))
    except ZooError as error:
        return None, [str(error)]
    except (
        Exception
    ) as error:  # transformers' classes refuse each in its own way what they are not made for
        return None, [
            errors.first_line(error),
            *[""] * (len(MODEL) - 1),
        ]  # further away than what can be said by parts
    return theirs, _parting_options(model, back)


def _made(config: dict[str, Any]) -> Any:
    with torch.device("meta"):
        model = registry.build("arch", config["arch"], config)
    model.config = config
    return model


def _parting_options(model: Any, other: Any) -> list[str]:
    """The options by which two models differ: those of the first that make the second another one than it is."""
    anatomy, found = _anatomy(other), list[str]()
    if not _differ(_anatomy(model), anatomy):
        return []
    ours, theirs = _words(model), _words(other)
    for word, value in ours.items():
        above = [known for known in found if word.startswith(f"{known.partition('=')[0]}.")]
        if _same(value, theirs.get(word)) or above or word.partition(".")[2] in ("", "name"):
            continue
        if (
            isinstance(value, Mapping)
            and isinstance(theirs.get(word), Mapping)
            and value["name"] == theirs[word]["name"]
        ):
            continue  # its own options come after it
        if _matters(word, value, other, anatomy):
            shown = value["name"] if isinstance(value, Mapping) else value
            found.append(word if isinstance(value, list) else f"{word}={shown}")
    return found or _differ(_anatomy(model), anatomy)[:4]


def _matters(word: str, value: Any, other: Any, anatomy: Mapping[str, Any]) -> bool:
    """Whether this option makes a model another one than it is."""
    config = copy.deepcopy(other.config)
    node, *path = config, *word.split(".")
    for key in path[:-1]:
        node[key] = {"name": node[key]} if isinstance(node[key], str) else node[key]
        node = node[key]
    node[path[-1]] = value
    try:
        return bool(_differ(_anatomy(_made(config)), anatomy))
    except ZooError:
        return True


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [key for key in sorted({*one, *other}) if not _same(one.get(key), other.get(key))]


def _same(one: Any, other: Any) -> bool:
    both = isinstance(one, float) and isinstance(other, float)
    return math.isclose(one, other, rel_tol=1e-9) if both else one == other


def untie(theirs: Any) -> None:
    """Give the head a weight of its own, where the class can have one; a masked-LM head cannot."""
    if isinstance(head := getattr(theirs, "lm_head", None), nn.Linear):
        head.weight = nn.Parameter(torch.empty_like(head.weight))


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
    attention = next(
        (module for module in blocks[-1].modules() if isinstance(module, MultiHead)), None
    )
    if attention is not None:
        flat |= {
            "attn.head_dim": attention.width,
            "attn.scale": attention.scale,
            "attn.kv_heads": attention.kv_heads,
        }
    for path, module in blocks[
        -1
    ].named_modules():  # the last layer, as the first may be dense in a mixture
        if (
            path.startswith(("ffn.", "both.sublayer.ffn"))
            and ".shared" not in path
            and hasattr(module, "out")
        ):
            flat["ffn.expert.hidden" if ".experts." in path else "ffn.hidden"] = (
                module.out.in_features
            )
    if flat.get("arch.decoder_layers", 1) is None:
        flat["arch.decoder_layers"] = flat["arch.layers"]
    return flat


def _anatomy(model: nn.Module) -> dict[str, Any]:
    """All that decides what a model computes, but for the weights: its modules' kinds and constants, the weights' shapes."""
    found: dict[str, Any] = {
        name: tuple(tensor.shape) for name, tensor in model.state_dict().items()
    }
    for path, module in model.named_modules():
        found[path] = type(module).__name__
        for key, value in vars(module).items():
            if (
                isinstance(value, int | float | str | tuple | None)
                and key not in UNSEEN
                and not key.startswith("_")
            ):
                found[f"{path}.{key}"] = value
            elif key == "act":
                found[f"{path}.{key}"] = repr(value)
            elif key == "scaling":
                found[f"{path}.{key}"] = (
                    type(value).__name__,
                    *getattr(value, "__dict__", {}).items(),
                )
    return found
