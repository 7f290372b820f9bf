"""The specification of a study: its schema, its hashes, and how its file is read and checked."""

from ablations.study.loading import load
from ablations.study.parsing import choices, parse
from ablations.study.schema import (
    HASHING,
    TOLERANCE,
    UNITS,
    Choices,
    Study,
    Tune,
    field_names,
    hashed,
    merged,
    plain,
)
from ablations.study.yaml_values import parse_value

__all__ = [
    "HASHING",
    "TOLERANCE",
    "UNITS",
    "Choices",
    "Study",
    "Tune",
    "choices",
    "field_names",
    "hashed",
    "load",
    "merged",
    "parse",
    "parse_value",
    "plain",
]
