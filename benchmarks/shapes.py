"""The size of a model that is measured, and of its batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Shape:
    """The size of a model and of its batch."""

    layers: int
    dim: int
    heads: int
    length: int
    vocab: int
    batch: int

    def overrides(self) -> list[str]:
        """The shape as overrides of the zoo."""
        return [f"arch.{name}={value}" for name, value in asdict(self).items() if name != "batch"]

    def tiny(self) -> Shape:
        """The smallest similar shape, to warm up a process."""
        return replace(self, layers=1, dim=8 * self.heads, length=16, vocab=16, batch=1)
