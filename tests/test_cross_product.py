"""Any component with any other: the product of all groups, a seeded sample of it here, all of it
in the slow group.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.components import ARCH, Choice, chosen, close, honours, make, shaken, tokens
from zoo import registry
from zoo.conformance.sequences import LEFT_PADDED as LEFT
from zoo.conformance.sequences import LENGTH, check_cache, check_documents, check_padding
from zoo.conformance.sequences import RIGHT_PADDED as RIGHT
from zoo.errors import ZooError

GROUPS = ("norm", "residual", "block", "pos", "attn", "ffn")  # and the embeddings in turn
FAMILIES = ("decoder", "encoder", "encoder_decoder")
Parts = dict[str, str]
SAMPLE, SLICES = 90, 40


def product() -> list[Parts]:
    names, embeds = (
        [list(registry.entries(group)) for group in GROUPS],
        list(registry.entries("embed")),
    )
    every = itertools.product(*names)
    return [
        dict(zip(GROUPS, picked, strict=True)) | {"embed": embeds[number % len(embeds)]}
        for number, picked in enumerate(every)
    ]


def meaningless(parts: Parts) -> str | None:
    """Why these parts cannot be put together, in a word of the refusal: the only combinations
    that may be refused.
    """
    if parts["block"] == "parallel" and parts["residual"] in ("post", "deepnorm"):
        return "block=parallel"
    if honours(parts["attn"]).isdisjoint(("rotate", "bias")) and parts["pos"] in (
        "rope",
        "alibi",
        "t5",
    ):
        return "this pos would do nothing"
    return None


def check(parts: Parts, arch: str) -> None:
    options: dict[str, Any] = {group: chosen(group, name) for group, name in parts.items()}
    family: Choice = {"name": arch, "layers": 2}
    if refused := meaningless(parts):
        with pytest.raises(ZooError, match=refused):
            make(arch=family, **options)
        return
    model = (
        shaken(make(arch=family, **options)).double().eval()
    )  # without norms, float32 has few digits left
    {"decoder": check_decoder, "encoder": check_encoder, "encoder_decoder": check_both}[arch](model)


@torch.no_grad()
def check_decoder(model: Any) -> None:
    before, after = tokens(), tokens()
    after[:, 8:] = (after[:, 8:] + 1) % ARCH["vocab"]
    close(model(after)[:, :8], model(before)[:, :8], 1e-6)
    check_cache(model)
    check_padding(model)
    check_documents(model)


@torch.no_grad()
def check_encoder(model: Any) -> None:
    whole = model(tokens())
    changed = tokens()
    changed[:, -1] = (changed[:, -1] + 1) % ARCH["vocab"]
    assert not torch.allclose(model(changed)[:, 0], whole[:, 0], atol=1e-6)
    for mask in (LEFT, RIGHT):
        for row in range(2):
            close(model(tokens(), mask)[row][mask[row]], model(tokens()[row][mask[row]][None])[0])
    check_documents(model)


@torch.no_grad()
def check_both(model: Any) -> None:
    from zoo.context import Cache

    x, y = tokens(), tokens(length=6, seed=1)
    for mask in (LEFT, RIGHT):
        whole: Tensor = model(x, y, mask)
        for row in range(2):
            close(whole[row], model(x[row][mask[row]][None], y[row][None])[0])
        cache, memory = Cache(LENGTH), model.encode(x, mask)
        pieces = [model.decode(y[:, at : at + 2], memory, mask, cache=cache) for at in (0, 2, 4)]
        close(model.logits(torch.cat(pieces, 1)), whole)
    later = y.clone()
    later[:, 4:] = (later[:, 4:] + 1) % ARCH["vocab"]
    close(model(x, later)[:, :4], model(x, y)[:, :4], 1e-6)


def sampled() -> list[tuple[Parts, str]]:
    """The same sample always; each component is in it."""
    draw = random.Random(0)
    return [
        (parts, FAMILIES[number % 3]) for number, parts in enumerate(draw.sample(product(), SAMPLE))
    ]


def named(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(value.values())


@pytest.mark.parametrize(("parts", "arch"), sampled(), ids=named)
def test_a_sample_holds_together_or_is_refused_by_name(parts: Parts, arch: str) -> None:
    check(parts, arch)


def test_the_sample_has_every_component() -> None:
    seen = {(group, name) for parts, _ in sampled() for group, name in parts.items()}
    assert seen == {
        (group, name) for group in (*GROUPS, "embed") for name in registry.entries(group)
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(SLICES))
def test_every_combination_holds_together_or_is_refused_by_name(part: int) -> None:
    for number, parts in enumerate(product()):
        if number % SLICES == part:
            check(parts, FAMILIES[number // SLICES % 3])
