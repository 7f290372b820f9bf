"""Builds tiny decoders from any registered component, for checks that hold whatever the component
does.
"""

from __future__ import annotations

import copy
import enum
import functools
import json
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo import models, registry
from zoo.models import Decoder

BASE = {
    "embed": "plain",
    "norm": "layer",
    "residual": "pre",
    "block": "serial",
    "pos": "rope",
    "attn": "mha",
    "ffn": "gelu",
    "head": "linear",
    "init": "fan_in",
}
ARCH: dict[str, Any] = {
    "name": "decoder",
    "dim": 16,
    "layers": 2,
    "heads": 4,
    "length": 16,
    "vocab": 32,
}
EXAMPLES: dict[Any, Any] = {int: 2, float: 0.5, str: "x"}  # of options without a default
Choice = dict[str, Any]  # a component's name and options
Case = tuple[str, Choice]  # a group and what is chosen in it
Parts = Mapping[str, str | Choice]  # a choice for some groups


def option(group: str, name: str, key: str) -> Field[Any] | None:
    """An option of a component, or None where it has no such option."""
    options = fields(registry.entry(group, name).options)
    return next((option for option in options if option.name == key), None)


def values_of(option: Field[Any]) -> list[Any]:
    """Every value of a Literal or a bool; an empty list for any other type.

    Without `flex` where there is no GPU: it has no gradient there.
    """
    kinds = [
        kind for kind in [*typing.get_args(option.type), option.type] if kind is not type(None)
    ]
    kind = kinds[0]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [value.name for value in kind if value.name != "flex" or torch.cuda.is_available()]
    return [False, True] if kind is bool else []


def example(option: Field[Any]) -> Any:
    """A value for an option that has no default, by its type."""
    return (values_of(option) or [EXAMPLES.get(option.type, 2)])[0]


def default_choice(group: str, name: str) -> Choice:
    """A component with its defaults, and an example value for each option that has none."""
    choice: Choice = {"name": name}
    for option in fields(registry.entry(group, name).options)[1:]:
        if option.default == "???" and option.default_factory is MISSING:
            choice[option.name] = example(option)
    return choice


def variants(group: str, name: str) -> list[Choice]:
    """A component with its defaults, then once with each other value of its Literals and bools."""
    plain = default_choice(group, name)
    found = [plain]
    for option in fields(registry.entry(group, name).options)[1:]:
        default = getattr(option.default, "name", option.default)
        found += [plain | {option.name: value} for value in values_of(option) if value != default]
    return found


@functools.cache
def honours(attn: str) -> frozenset[str]:
    """What a mixer declares that it honours (see zoo.nn.mixer)."""
    declared: frozenset[str] = registry.build(
        "attn", default_choice("attn", attn), 16, 4, True
    ).honours
    return declared


def base_parts(changes: Parts) -> dict[str, Choice]:
    """The parts of the base decoder with some changed; without positions for a mixer that has no
    scores.
    """
    named = {
        group: {"name": choice} if isinstance(choice, str) else choice
        for group, choice in {**BASE, **changes}.items()
    }
    if "pos" not in changes and "rotate" not in honours(named["attn"]["name"]):
        named["pos"] = {"name": "none"}
    return named


def decoder(
    parts: Parts | None = None,
    seed: int = 0,
    device: str = "cpu",
    arch: Choice | None = None,
) -> Decoder:
    """A tiny decoder of the base parts, some of them changed. Built once per configuration, then
    copied.
    """
    configured = {"arch": ARCH | (arch or {})} | base_parts(parts or {})
    return copy.deepcopy(_built(json.dumps(configured), seed, device))


@functools.lru_cache(512)
def _built(configured: str, seed: int, device: str) -> Decoder:
    return models.build(json.loads(configured), seed=seed, device=device)


def perturbed(model: Decoder) -> Decoder:
    """The model with every parameter moved, so that none is at a value (0, 1) that hides a
    mistake.
    """
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))
    return model


def decoder_with(case: Case) -> Decoder:
    """A perturbed tiny decoder that has this component."""
    return perturbed(decoder(dict([case])))


def tokens(batch: int = 2, length: int = 12, seed: int = 0) -> Tensor:
    """Random tokens (batch, length), the same for the same seed."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(ARCH["vocab"], (batch, length), generator=draw)


def loss_of(model: Decoder, **inputs: Any) -> Tensor:
    """A loss that depends on every logit."""
    logits = model(tokens(), **inputs)
    return F.cross_entropy(logits.flatten(0, 1), tokens(seed=1).flatten() % logits.shape[-1])


def gradients(model: Decoder, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of each parameter by name; a scalar zero for one that takes no part in the
    loss.
    """
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros(()) if gradient is None else gradient
        for name, gradient in zip(named, found, strict=True)
    }


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Raise AssertionError where two tensors differ by more than the tolerance, relative or
    absolute.
    """
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
