"""Read a run's summary, whoever wrote it: fields of a wrong type are left out and named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zoo import metrics

Number = float  # finite, not a bool
SHAPES: dict[str, Any] = {
    **dict.fromkeys(("status", "error", "outcome", "over", "git_sha"), str),
    **dict.fromkeys(
        (
            "parameters",
            "flops_per_token",
            "tokens",
            "steps",
            "seconds",
            "tokens_per_second",
            "peak_memory_bytes",
            "unigram_nats",
        ),
        Number,
    ),
    "seed": int,
    "overrides": [str],
    "metrics": {str: object},
    "versions": {str: str},
    "host": {str: object},
    "data": {
        **dict.fromkeys(("documents", "bytes", "tokens", "unigram_nats"), Number),
        "fingerprint": str,
    },
    "sources": {"files": {str: str}, "components": {str: str}},
    "earlier_sources": [{str: str}],
}


def cleaned(summary: Mapping[str, Any], shapes: Mapping[str, Any] = SHAPES) -> dict[str, Any]:
    """The known fields of a summary that have the right type."""
    fields: dict[str, Any] = {}
    for name, shape in shapes.items():
        value = summary.get(name)
        if _nested(shape) and isinstance(value, Mapping):
            fields[name] = cleaned(value, shape)
        elif name in summary and (value is None or (not _nested(shape) and _fits(value, shape))):
            fields[name] = value
    return fields


def misshapen(
    summary: Mapping[str, Any], shapes: Mapping[str, Any] = SHAPES, path: str = ""
) -> Iterator[str]:
    """The dotted names of the known fields that have a wrong type."""
    for name, shape in shapes.items():
        value = summary.get(name)
        if _nested(shape) and isinstance(value, Mapping):
            yield from misshapen(value, shape, f"{path}{name}.")
        elif value is not None and (_nested(shape) or not _fits(value, shape)):
            yield f"{path}{name}"


def _nested(shape: Any) -> bool:
    """Whether a shape names its fields, each of which is checked by itself."""
    return isinstance(shape, dict) and str not in shape


def _fits(value: Any, shape: Any) -> bool:
    """Whether a value is None or has a shape: a type, [of each item] or {str: of each value}."""
    if value is None or shape is object:
        return True
    if shape is Number:
        return metrics.number(value) is not None
    if isinstance(shape, list):
        return isinstance(value, list) and all(
            each is not None and _fits(each, shape[0]) for each in value
        )
    if isinstance(shape, dict):
        return isinstance(value, Mapping) and all(
            _fits(each, shape[str]) for each in value.values()
        )
    if isinstance(value, bool) or not isinstance(value, shape):
        return False
    return shape is not int or abs(value) < 2**63
