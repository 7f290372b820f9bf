"""Every component there is, taken from the registry, in a decoder that is tiny.

A component registered tomorrow is tested unasked: nothing here knows one by name, but for the
base's.
"""

from __future__ import annotations

import itertools
from dataclasses import fields
from typing import Any

import pytest

from zoo import config, registry
from zoo.conformance.tiny import (
    ARCH,
    BASE,
    Case,
    Choice,
    base_parts,
    close,
    decoder,
    gradients,
    honours,
    loss_of,
    option,
    tokens,
    variants,
)
from zoo.conformance.tiny import default_choice as chosen
from zoo.conformance.tiny import perturbed as shaken
from zoo.conformance.tiny import values_of as words_of
from zoo.errors import ZooError
from zoo.models import Decoder

__all__ = [
    "ARCH",
    "BASE",
    "Case",
    "Choice",
    "chosen",
    "close",
    "gradients",
    "honours",
    "loss_of",
    "option",
    "shaken",
    "tokens",
    "words_of",
]

config.discover()

PROBES = {
    "window": (None, 3),
    "qk_norm": (None, "rms"),
}  # options of attention that change what it sees or keeps


def choices(group: str) -> list[Choice]:
    """Every component of a group, and it again with each other value of its Literals and bools."""
    return [choice for name in registry.entries(group) for choice in variants(group, name)]


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


def each(group: str) -> pytest.MarkDecorator:
    """A test of each component of a group, with its defaults."""
    return pytest.mark.parametrize(
        group, [chosen(group, name) for name in registry.entries(group)], ids=said
    )


def base(**parts: Any) -> dict[str, Any]:
    return base_parts(parts)


def make(seed: int = 0, device: str = "cpu", arch: Choice | None = None, **parts: Any) -> Decoder:
    """A tiny decoder of the base's parts, some of them exchanged."""
    return decoder(parts, seed, device, arch)


def made(case: Case, **more: Any) -> Decoder:
    """A shaken tiny decoder with this component."""
    group, choice = case
    return shaken(make(**{group: choice}, **more))


def made_or_skipped(**parts: Any) -> Decoder:
    """A shaken tiny decoder of parts that may have no meaning together, which their own tests do
    not excuse.
    """
    try:
        return shaken(make(**parts))
    except ZooError as refused:
        pytest.skip(str(refused))
