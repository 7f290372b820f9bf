"""Finds the class of transformers that computes what a model does, or names what they lack."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from zoo import config as configuration
from zoo import errors, models
from zoo.config import model_usage
from zoo.errors import ZooError
from zoo.hf.differences import build_on_meta, differing_options, options_of
from zoo.hf.family import Family
from zoo.hf.reading import GROUPS, read_config
from zoo.hf.tables import FAMILIES
from zoo.utils import extras

SAME_PART = {"mha": "gqa", "mqa": "gqa"}  # by a number of KV heads


def counterpart(model: Any) -> tuple[str, Family, Any]:
    """The class of transformers whose configuration, read back, makes the same model.

    Returns its name, its family and a model of it without weights. Raises ZooError where there is
    none, naming the closest classes and what they lack.
    """
    extras.need("transformers", "zoo.hf")
    names = {group: model.config[group]["name"] for group in GROUPS}
    closest: dict[tuple[str, ...], str] = {}  # by its differences, the first class that has them
    fewest = 2 * len(GROUPS)
    for name, groups in _by_differing_groups(names):
        if len(groups) > fewest:
            break
        candidate = _with_parts_of(model, FAMILIES[name], groups)
        hf_model, options = (None, []) if candidate is None else _fit(name, candidate)
        if not groups and not options:
            return name, FAMILIES[name], hf_model
        differences = (*(f"{group}={names[group]}" for group in groups), *options)
        if len(differences) < fewest:
            closest, fewest = {}, len(differences)
        if len(differences) == fewest:
            closest.setdefault(differences, name.split()[0])
    named = [(name, ", ".join(filter(None, what))) for what, name in closest.items()]
    others = "".join(f"; {name} lacks {what}" for name, what in named[1:])
    raise ZooError(
        "transformers has no model like this one: the closest,"
        f" {named[0][0]}, lacks {named[0][1]}{others}"
    )


def _by_differing_groups(names: dict[str, str]) -> list[tuple[str, list[str]]]:
    """The classes of the same architecture with the groups whose parts differ, the fewest first."""
    differing = {}
    for name, family in FAMILIES.items():
        parts = _parts_of(family)
        if parts["arch"] == names["arch"]:
            differing[name] = [
                group
                for group in GROUPS
                if SAME_PART.get(names[group], names[group]) != parts[group]
            ]
    return sorted(differing.items(), key=lambda item: len(item[1]))


def _parts_of(family: Family) -> dict[str, str]:
    """The names of the parts that a class is made of."""
    model, *overrides = family.model.split()
    chosen = model_usage.chosen(model) | dict(word.split("=") for word in overrides)
    return {group: SAME_PART.get(chosen[group], chosen[group]) for group in GROUPS}


def _with_parts_of(model: Any, family: Family, groups: Sequence[str]) -> Any:
    """The model, without weights, with a class's own parts in these groups; None if impossible."""
    if not groups:
        return model
    config, own = copy.deepcopy(model.config), _composed(family.model)
    for group in groups:
        common = {
            key: value
            for key, value in config[group].items()
            if key in own[group] and key != "name"
        }
        config[group] = own[group] | common
        for key in ("first", "pattern"):  # which change parts in some layers
            own_layers = own["arch"][key]
            for layer, changes in enumerate(config["arch"][key]):
                changes.pop(group, None)
                if layer < len(own_layers) and group in own_layers[layer]:
                    changes[group] = own_layers[layer][group]
    try:
        return models.build(config, device="meta")
    except ZooError:
        return None


@functools.cache
def _composed(model: str) -> dict[str, Any]:
    name, *overrides = model.split()
    return configuration.compose([f"model={name}", *overrides, "size=tiny"])


def _fit(name: str, model: Any) -> tuple[Any, list[str]]:
    """Configure a class, without weights, as a model, and list the options by which it differs."""
    import transformers

    family, options = FAMILIES[name], options_of(model)
    try:
        values = {
            attribute: options[option]
            for option, attribute in family.options.items()
            if option in options
        }
        for field in family.fields:
            values |= field.write(options, model)
        with torch.device("meta"):
            config_class = getattr(transformers, family.config)
            # An attribute that the class does not know, it would store and ignore.
            known = vars(config_class())
            values = {key: value for key, value in values.items() if key in known}
            # The class's own token ids belong to the vocabulary that it was made for.
            no_ids = {key: None for key in known if key.endswith("_token_id")}
            config = config_class(**{**no_ids, **family.required, **values})
            hf_model = getattr(transformers, name.split()[0])(config)
            if "head.weight" in dict(model.named_parameters()):
                untie(hf_model)
            read_back = build_on_meta(read_config(family, hf_model))
    except ZooError as error:
        return None, [str(error)]
    except Exception as error:  # each class of transformers refuses bad values in its own way
        # Counted as further away than any class whose differences can be named.
        return None, [errors.first_line(error), *[""] * (len(GROUPS) - 1)]
    return hf_model, differing_options(model, read_back)


def untie(hf_model: nn.Module) -> None:
    """Give the head a weight of its own, where the class can have one; a masked-LM head cannot."""
    if isinstance(head := getattr(hf_model, "lm_head", None), nn.Linear):
        head.weight = nn.Parameter(torch.empty_like(head.weight))
