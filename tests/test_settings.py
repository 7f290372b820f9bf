"""The words of a run that are no components: whatever stands in one gives a configuration or one
sentence.
"""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any

import pytest

from zoo import config, registry
from zoo.config import schema
from zoo.errors import ZooError

config.discover()
NODES = {**schema.NODES, "logger": registry.entry("logger", "wandb").options}
NAMES = [f"{node}.{option.name}" for node, made in NODES.items() for option in fields(made)]
ODD: list[Any] = [
    None,
    3,
    -1,
    0,
    2.5,
    float("nan"),
    float("inf"),
    True,
    "x",
    "",
    [],
    ["x"],
    [None],
    [[1]],
    {},
    {"a": 1},
    10**400,
]


@functools.cache
def composed() -> dict[str, Any]:
    return config.compose()


def refusal(given: dict[str, Any]) -> str | None:
    try:
        logger = registry.resolve("logger", given["logger"])
        schema.check(given | {"logger": logger} | schema.typed(given))
    except ZooError as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("name", [*NAMES, "seed", "resume", "changing", *NODES])
def test_whatever_stands_in_a_setting_is_taken_or_refused_in_a_sentence(name: str) -> None:
    usual = composed()
    node, _, option = name.partition(".")
    for value in ODD:
        odd = usual | {node: usual[node] | {option: value} if option else value}
        said = refusal(odd)
        named = node if option == "name" else name.split(".")[-1]
        assert said is None or ("\n" not in said and named in said), "it names the setting"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("logger.tags=['']", "logger.tags: '' has 0 characters, and W&B takes from 1 to 64"),
        (f"logger.tags=[fine,{'x' * 65}]", "has 65 characters"),
        ("logger.project='a/b'", "logger.project='a/b' is no name for W&B"),
        (
            "changing=3",
            "changing must be a list of names, as in changing=.trainer.max_steps., not 3",
        ),
        ("changing=null", "changing must be a list of names"),
        ("changing=[[seed]]", "changing must be a list of names"),
    ],
)
def test_what_is_wrong_is_said_while_composing(word: str, said: str) -> None:
    with pytest.raises(ZooError, match=said):
        config.compose([word])


def test_a_number_is_a_name_for_wandb() -> None:
    logger: dict[str, Any] = config.compose(["logger.label=2026", "logger.group=7"])["logger"]
    assert (logger["label"], logger["group"]) == ("2026", "7")
