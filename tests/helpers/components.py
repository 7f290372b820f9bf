"""Every component there is, taken from the registry, in a decoder that is tiny.

A component registered tomorrow is tested unasked: nothing here knows one by name, but for the base's.
"""

from __future__ import annotations

import copy
import enum
import functools
import itertools
import json
import typing
from dataclasses import MISSING, Field, fields
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from zoo import config, models, registry
from zoo.errors import ZooError
from zoo.models import Decoder

config.discover()

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
ARCH = {"name": "decoder", "dim": 16, "layers": 2, "heads": 4, "length": 16, "vocab": 32}
PROBES = {
    "window": (None, 3),
    "qk_norm": (None, "rms"),
}  # options of attention that change what it sees or keeps
Choice = dict[str, Any]
Case = tuple[str, Choice]  # a group and what is chosen in it


def option(group: str, name: str, word: str) -> Field[Any] | None:
    """An option of a component, where it has it."""
    return next(
        (option for option in fields(registry.entry(group, name).options) if option.name == word),
        None,
    )


def words_of(option: Field[Any]) -> list[Any]:
    """All values of an option that has few: the words of a Literal, both ways of a switch; else an empty list.

    Without `flex` where there is no GPU, as it has no gradient there; its forward pass is compared by its own test.
    """
    kind = next(
        (kind for kind in [*typing.get_args(option.type), option.type] if kind is not type(None)),
        None,
    )
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [word.name for word in kind if word.name != "flex" or torch.cuda.is_available()]
    return [False, True] if kind is bool else []


def smallest(option: Field[Any]) -> Any:
    """A value for an option that has no default, by its type."""
    examples = {int: 2, float: 0.5, str: "x"}
    return (words_of(option) or [examples.get(typing.cast(type, option.type), 2)])[0]


def chosen(group: str, name: str) -> Choice:
    """A component with its defaults, and with something for each option that needs to be given."""
    options = fields(registry.entry(group, name).options)[1:]
    needed = [
        option
        for option in options
        if option.default == "???" and option.default_factory is MISSING
    ]
    return {"name": name, **{option.name: smallest(option) for option in needed}}


def choices(group: str) -> list[Choice]:
    """Every component of a group, and it again with each other word of its Literals and each switch turned."""
    found = []
    for name, entry in registry.entries(group).items():
        found.append(chosen(group, name))
        for option in fields(entry.options)[1:]:
            default = getattr(option.default, "name", option.default)
            found += [
                chosen(group, name) | {option.name: word}
                for word in words_of(option)
                if word != default
            ]
    return found


def attentions() -> list[Choice]:
    """Every attention, with the backends, windows and norms of queries and keys that it offers.

    Of their combinations every second one, so that each pair of values still meets.
    """
    found = []
    for name, entry in registry.entries("attn").items():
        known = fields(entry.options)
        offered = {option.name: PROBES.get(option.name, words_of(option)) for option in known}
        tried = {word: values for word, values in offered.items() if word in (*PROBES, "backend")}
        for picked in itertools.product(*(range(len(values)) for values in tried.values())):
            if sum(picked) % 2 == 0:
                values = {
                    word: tried[word][which] for word, which in zip(tried, picked, strict=True)
                }
                found.append(chosen("attn", name) | values)
    return found


def mixers() -> list[tuple[Choice, Choice]]:
    """Every such attention times every position."""
    return list(itertools.product(attentions(), choices("pos")))


def said(value: Any) -> str:
    """A test's name for what it is about."""
    if isinstance(value, dict):
        options = [f"{key}={word}" for key, word in value.items() if key != "name"]
        return "_".join([value.get("name", "_with"), *options])
    return "-".join(map(said, value)) if isinstance(value, tuple) else str(value)


def cases(*groups: str) -> pytest.MarkDecorator:
    """A test of each component of these groups (default: all that a decoder is made of)."""
    found = [(group, choice) for group in groups or BASE for choice in choices(group)]
    return pytest.mark.parametrize("case", found, ids=said)


@functools.cache
def honours(attn: str) -> frozenset[str]:
    """What a mixer says that it honours (zoo.nn.mixer)."""
    found: frozenset[str] = registry.build("attn", chosen("attn", attn), 16, 4, True).honours
    return found


def base(**parts: Any) -> dict[str, Any]:
    """The base's parts, some of them exchanged; without a position where attention has no scores for it to change."""
    named = {
        group: {"name": choice} if isinstance(choice, str) else choice
        for group, choice in (BASE | parts).items()
    }
    if "pos" not in parts and "rotate" not in honours(named["attn"]["name"]):
        named["pos"] = {"name": "none"}
    return named


def make(seed: int = 0, device: str = "cpu", arch: Choice | None = None, **parts: Any) -> Decoder:
    """A tiny decoder of the base's parts, some of them exchanged."""
    named = base(**parts)
    return copy.deepcopy(_built(json.dumps({"arch": ARCH | (arch or {})} | named), seed, device))


@functools.lru_cache(512)
def _built(configured: str, seed: int, device: str) -> Decoder:
    return models.build(json.loads(configured), seed=seed, device=device)


def shaken(model: Decoder) -> Decoder:
    """The model with every parameter moved, so that none is at a value (0, 1) where a mistake would not show."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=draw)
    return model


def each(group: str) -> pytest.MarkDecorator:
    """A test of each component of a group, with its defaults."""
    return pytest.mark.parametrize(
        group, [chosen(group, name) for name in registry.entries(group)], ids=said
    )


def made(case: Case, **more: Any) -> Decoder:
    """A shaken tiny decoder with this component."""
    group, choice = case
    return shaken(make(**{group: choice}, **more))


def made_or_skipped(**parts: Any) -> Decoder:
    """A shaken tiny decoder of parts that may have no meaning together, which their own tests do not excuse."""
    try:
        return shaken(make(**parts))
    except ZooError as refused:
        pytest.skip(str(refused))


def tokens(batch: int = 2, length: int = 12, seed: int = 0) -> Tensor:
    return torch.randint(
        ARCH["vocab"], (batch, length), generator=torch.Generator().manual_seed(seed)
    )


def loss_of(model: Decoder, **given: Any) -> Tensor:
    """A loss that every logit takes part in."""
    logits = model(tokens(), **given)
    return F.cross_entropy(logits.flatten(0, 1), tokens(seed=1).flatten() % logits.shape[-1])


def gradients(model: Decoder, loss: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros(()) if grad is None else grad
        for name, grad in zip(named, found, strict=True)
    }


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
