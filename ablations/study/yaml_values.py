"""Load YAML with the scalar types of Hydra's command line, and refuse repeated keys.

This is YAML 1.2. YAML 1.1 reads `off` as false, 010 as 8, 1:30 as 90 and 2024-01-01 as a date.
Names and keys stay text, as they are written.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml

from zoo.errors import ZooError

_FLOAT = (
    r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+|\.[0-9]+[eE][-+]?[0-9]+)"
    r"|[-+]?\.(inf|Inf|INF)"
)
# Each scalar type: the pattern of its values, and the characters that they begin with.
_SCALARS = {
    "null": (r"|~|null|Null|NULL", ["", "~", "n", "N"]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9][0-9_]*)", list("-+0123456789")),
    "float": (_FLOAT, list("-+.0123456789")),
    "merge": ("<<", ["<"]),
}


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalar types above and unique keys."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(keys) < len(node.value):
            raise _refusal(node, "a key must be a word")
        if repeated := [key for key in keys if keys.count(key) > 1]:
            raise _refusal(node, f"the key {repeated[0]!r} is repeated")
        self.flatten_mapping(node)
        return {key.value: self._value(key.value, value, deep) for key, value in node.value}

    def _value(self, key: str, node: yaml.Node, deep: bool) -> Any:
        if key == "name" and isinstance(node, yaml.ScalarNode):
            return node.value
        return self.construct_object(node, deep)


for _tag, (_pattern, _first) in _SCALARS.items():
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^({_pattern})$"), _first)


def _refusal(node: yaml.Node, message: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, message, node.start_mark)


def parse_value(text: str) -> Any:
    """Parse a value as it is typed on a command line."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ZooError(f"cannot read {text!r}: quote it") from error
