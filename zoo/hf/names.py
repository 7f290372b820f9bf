"""Matches the weights of a zoo model to transformers' names, by a table (zoo.hf.family)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from torch import Tensor, nn

from zoo.errors import ZooError

TRANSPOSED = "ᵀ"
Matched = tuple[dict[str, Tensor], list[str]]


def matched(table: str, model: nn.Module, known: Collection[str]) -> Iterator[Matched]:
    """Yield the model's weights, grouped as transformers' are, with transformers' names for each
    group.

    Several weights of the zoo can be one of transformers (experts), and the other way round (q, k
    and v). Raises ZooError for a weight that no line of the table matches.
    """
    left = {name: tensor.detach() for name, tensor in model.state_dict(keep_vars=True).items()}
    for line in filter(None, map(str.strip, table.splitlines())):
        ours, theirs = line.split()
        pattern = _pattern(ours)
        groups: dict[tuple[str, str], dict[str, Tensor]] = {}
        for name, tensor in left.items():
            if match := pattern.fullmatch(name):
                parts = match.groupdict()
                group = (parts.get("layer", ""), parts.get("kind", ""))
                groups.setdefault(group, {})[name] = tensor
        for (layer, kind), members in groups.items():
            for name in members:
                del left[name]
            yield members, _names(theirs.replace("*", layer).replace("@", kind), known)
    if left:
        raise ZooError(f"transformers has no counterpart of {', '.join(list(left)[:3])}")


def _pattern(ours: str) -> re.Pattern[str]:
    """The zoo's side of a line as a regular expression."""
    pattern = re.escape(ours)
    pattern = pattern.replace(r"\*", r"(?P<layer>\d+)").replace(r"\#", r"\d+")
    pattern = pattern.replace("@", "(?P<kind>weight|bias)")
    choices = re.sub(r"\\{(.*?)\\}", lambda match: f"({match[1].replace(',', '|')})", pattern)
    return re.compile(choices)


def _names(template: str, known: Collection[str]) -> list[str]:
    """Expand `a.{b,c|d}.e` into a.b.e and a.c.e, or a.d.e where that is the known one."""
    if not (choice := re.search(r"{(.*?)}", template)):
        return [template]
    names = []
    for alternatives in choice[1].split(","):
        spellings = [template.replace(choice[0], word) for word in alternatives.split("|")]
        names.append(next((name for name in spellings if name in known), spellings[0]))
    return names


def plain_name(name: str) -> str:
    """A name without the mark of a weight that is stored transposed."""
    return name.rstrip(TRANSPOSED)


def as_rows(tensor: Tensor, transposed: bool = False) -> Tensor:
    """(..., columns) -> (rows, columns), and a vector as one column."""
    if tensor.ndim < 2:
        return tensor.reshape(-1, 1)
    return tensor.T if transposed else tensor.flatten(0, -2)
