"""What a run's files may hold, whoever wrote them: what is of another kind is left out, and said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zoo import metrics

Number = float  # finite, and no truth value
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
    """The fields of a summary that are known and of their kind."""
    found: dict[str, Any] = {}
    for name, shape in shapes.items():
        value = summary.get(name)
        if _nested(shape) and isinstance(value, Mapping):
            found[name] = cleaned(value, shape)
        elif name in summary and (value is None or (not _nested(shape) and _fits(value, shape))):
            found[name] = value
    return found


def misshapen(
    summary: Mapping[str, Any], shapes: Mapping[str, Any] = SHAPES, path: str = ""
) -> Iterator[str]:
    """The dotted names of the fields that are known, and of another kind."""
    for name, shape in shapes.items():
        value = summary.get(name)
        if _nested(shape) and isinstance(value, Mapping):
            yield from misshapen(value, shape, f"{path}{name}.")
        elif value is not None and (_nested(shape) or not _fits(value, shape)):
            yield f"{path}{name}"


def _nested(shape: Any) -> bool:
    """Whether a shape names its fields, each of which is looked at alone."""
    return isinstance(shape, dict) and str not in shape


def _fits(value: Any, shape: Any) -> bool:
    """Whether a value is of a shape: a type, [of each], {str: of each value}; None is nothing said, of any."""
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
    return (
        isinstance(value, shape)
        and not isinstance(value, bool)
        and (shape is not int or abs(value) < 2**63)
    )
