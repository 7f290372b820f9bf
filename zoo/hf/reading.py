"""Reads the configuration of a transformers model as the zoo's."""

from __future__ import annotations

from typing import Any

from zoo import config as configuration
from zoo import models, registry
from zoo.errors import ZooError, did_you_mean
from zoo.hf.family import Family
from zoo.hf.tables import FAMILIES

GROUPS = ("arch", "embed", "head", *models.LAYERED)


def family_of(hf_model: Any) -> Family:
    """The family of a transformers model. Raises ZooError where the zoo has no counterpart."""
    name, config = type(hf_model).__name__, hf_model.config
    variants = [family for key, family in FAMILIES.items() if key.split()[0] == name]
    if not variants:
        classes = [key for key in FAMILIES if " " not in key]
        raise ZooError(f"{name} has no counterpart in the zoo{did_you_mean(name, classes)}")
    for family in variants:
        if not _other_values(family, config):
            return family
    attribute, required = next(iter(_other_values(variants[0], config).items()))
    value = getattr(config, attribute)
    raise ZooError(
        f"{config.model_type} with {attribute}={value!r} has no counterpart in the zoo, only with"
        f" {required!r}"
    )


def _other_values(family: Family, config: Any) -> dict[str, object]:
    """The required attributes, and their values, in which a configuration differs."""
    return {
        attribute: required
        for attribute, required in family.required.items()
        if getattr(config, attribute, required) != required
    }


def read_config(family: Family, hf_model: Any) -> dict[str, Any]:
    """The zoo's configuration of a transformers model."""
    options: dict[str, Any] = {
        option: getattr(hf_model.config, attribute)
        for option, attribute in family.options.items()
        if hasattr(hf_model.config, attribute)
    }
    for field in family.fields:
        options |= field.read(hf_model, options)
    name, *overrides = family.model.split()
    config = configuration.compose([f"model={name}", *overrides])
    for option, value in options.items():
        set_option(config, option, value)
    for group in GROUPS:
        config[group] = registry.resolve(group, config[group])
    return config


def set_option(config: dict[str, Any], option: str, value: Any) -> None:
    """Set a dotted option; a choice that is only a name becomes a mapping on the way."""
    *path, last = option.split(".")
    for key in path:
        if isinstance(config[key], str):
            config[key] = {"name": config[key]}
        config = config[key]
    config[last] = value
