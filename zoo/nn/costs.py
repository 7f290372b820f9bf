"""Protocols by which a module declares its own cost, where that is not every matrix it owns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from torch import nn


@runtime_checkable
class CountsFlops(Protocol):
    """Declares all its FLOPs per token, those of its children included."""

    def flops(self, length: int) -> int: ...


@runtime_checkable
class ChoosesChildren(Protocol):
    """Declares which of its children a token passes through, as a mixture of experts does."""

    def active(self) -> Iterable[nn.Module]: ...
