"""Describes how a model class of transformers maps to the zoo: its options and weights, as tables.

In a table of weights the zoo's name is on the left and transformers' on the right. `*` is the
number of a layer, `#` that of an expert, `@` weight or bias; `{q,k,v}` stands for several weights
that are stacked by rows, `a|b` for the one that exists; a name that ends in ᵀ is stored transposed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zoo.hf.fields import Field

BLOCK = "stack.blocks.*"


@dataclass(frozen=True)
class Family:
    """Maps a model class of transformers to the zoo's model with the same parts."""

    config: str  # transformers' configuration class
    model: str  # the zoo's named model, with overrides
    options: dict[str, str]  # the zoo's dotted option: the configuration's attribute
    weights: str  # the table of weights
    fields: tuple[Field, ...] = ()  # options that are more than one attribute
    required: dict[str, object] = field(default_factory=dict)  # values that attributes must have
    zero_buffers: tuple[str, ...] = ()  # of transformers, which the zoo lacks


def renamed(table: str, *pairs: tuple[str, str]) -> str:
    """A table with some names replaced, one pair after the other."""
    for old, new in pairs:
        table = table.replace(old, new)
    return table
