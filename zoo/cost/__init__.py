"""What a model costs, from its configuration alone: `python -m zoo.cost model=gpt2`."""

from zoo.cost.activations import figures, layout, memory, training_memory
from zoo.cost.counting import (
    BACKWARD_AND_FORWARD,
    active_children,
    cache_bytes,
    flops,
    inputs,
    made,
    of,
    parameters,
)
from zoo.cost.tables import size, table

__all__ = [
    "BACKWARD_AND_FORWARD",
    "active_children",
    "cache_bytes",
    "figures",
    "flops",
    "inputs",
    "layout",
    "made",
    "memory",
    "of",
    "parameters",
    "size",
    "table",
    "training_memory",
]
