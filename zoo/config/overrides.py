"""Read and write the words of a command line (`norm=rms`, `data.path='a b'`) in Hydra's grammar."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from zoo.errors import ZooError


@functools.lru_cache(1024)  # a long word takes seconds
def parse(word: str) -> Override:
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException as error:
        key, equals, value = word.partition("=")
        hint = (
            f"quote the value, as in {key}='\"{value}\"'"
            if equals
            else "write group=choice or group.option=value"
        )
        raise ZooError(f"cannot read {word!r}: {hint}") from error


def given(key: str, overrides: Sequence[str]) -> str | None:
    """Return the value that a command line gives to a key, without quotes; the last one counts."""
    values = [parse(word).value() for word in overrides if word.startswith(f"{key}=")]
    return str(values[-1]) if values else None


def typed(value: Any) -> str:
    """Write a value so that Hydra reads the same one: text that would be read as anything else
    is quoted.
    """
    if isinstance(value, list):
        return f"[{','.join(map(_inside, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_key(key)}:{_inside(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, str):
        return value if _reads_as("{}", value, value) else _quoted(value)
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _inside(value: Any) -> str:
    """Write a value within a list or a mapping, where a bracket or nothing may follow."""
    if not isinstance(value, str):
        return typed(value)
    return value if _reads_as("[{}]", value, [value]) else _quoted(value)


def _key(key: str) -> str:
    return re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", key)


def _quoted(text: str) -> str:
    return QuotedString(text, Quote.single).with_quotes()


def _reads_as(form: str, text: str, value: Any) -> bool:
    try:
        read = parse(f"x={form.format(text)}")
    except ZooError:
        return False
    return not read.is_sweep_override() and read.value() == value


_NEXT = re.compile(r"\s+(?=[+~]*[\w./@$-]+=)")


def split(text: str) -> list[str]:
    """Split a line into its words: at spaces before the next `key=`, but not within quotes or
    brackets.
    """
    words, begun, text = list[str](), 0, text.strip()
    for space in _NEXT.finditer(text):
        if _is_whole(text[begun : space.start()]):
            words.append(text[begun : space.start()])
            begun = space.end()
    return [*words, text[begun:]]


def _is_whole(text: str) -> bool:
    """Whether every quote and bracket that is opened in a text is closed in it."""
    bare = re.sub(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", "", text)
    quotes = re.search(r"""=\s*['"]|[\[{(,:]\s*['"]""", bare)
    return not quotes and all(
        bare.count(left) == bare.count(right) for left, right in ("[]", "{}", "()")
    )
