"""Holds a decoder to what caches, padding and packed documents must leave as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.conformance.tiny import (
    close,
    tokens,
)
from zoo.context import Cache
from zoo.models import Decoder

LENGTH = 12


LEFT_PADDED = torch.tensor([[True] * LENGTH, [False] * 5 + [True] * 7])


RIGHT_PADDED = LEFT_PADDED.flip(1)


DOCUMENTS = torch.tensor([[0] * 4 + [1] * 7 + [2], [3] * LENGTH])


POSITIONS = torch.tensor([[*range(4), *range(7), 0], [*range(LENGTH)]])


def in_chunks(model: Decoder, cache: Cache, *sizes: int, start: int = 0, **first: Any) -> Tensor:
    """Logits from pieces of these sizes, each behind the cache of those before it."""
    logits = []
    for size in sizes:
        logits.append(model(tokens()[:, start : start + size], cache=cache, **first))
        start, first = start + size, {}
    return torch.cat(logits, 1)


@torch.no_grad()
def check_cache(model: Decoder) -> None:
    close(in_chunks(model, Cache(LENGTH), 1, 3, LENGTH - 4), model(tokens()))
    close(in_chunks(model, Cache(20), *[1] * LENGTH), model(tokens()))


@torch.no_grad()
def check_padding(model: Decoder) -> None:
    for mask in (LEFT_PADDED, RIGHT_PADDED):
        padded = model(tokens(), mask)
        for row in range(2):
            close(padded[row][mask[row]], model(tokens()[row][mask[row]][None])[0])
    prompt = LEFT_PADDED[:, :7]  # left-padded, then continued
    cached = in_chunks(model, Cache(LENGTH), 7, 1, 4, padding_mask=prompt)
    close(cached[1][5:], model(tokens()[1:, 5:])[0])
    close(cached[0], model(tokens()[:1])[0])


@torch.no_grad()
def check_documents(model: Decoder) -> None:
    packed = model(tokens(), documents=DOCUMENTS, positions=POSITIONS)
    for start, end in ((0, 4), (4, 11), (11, 12)):
        close(packed[0, start:end], model(tokens()[:1, start:end])[0])
    close(packed[1], model(tokens()[1:])[0])
