"""What to write instead: an unknown option is met with the option or group that it means, and no
advice is one's own choice.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import fields

import pytest

from ablations import run
from tests.helpers.components import BASE, Choice, chosen, make
from zoo import config, models, registry
from zoo.config import schema, suggestions
from zoo.errors import ZooError

NODES = schema.NODES
SETTINGS = [(node, option.name) for node, made in NODES.items() for option in fields(made)]
OPTIONS = [
    (group, option)
    for group in registry.groups()
    for entry in registry.entries(group).values()
    for option in entry.defaults()
    if option != "name"
]


def test_every_option_is_known_by_its_bare_name() -> None:
    """Whether it is of a chosen component, of another, or a setting."""
    known = list(suggestions.options(config.compose()))
    for place, option in {*OPTIONS, *SETTINGS} - {("logger", "name")}:
        found = suggestions.nearest(option, [*config.menu(), *known], suggestions.owners_of(option))
        direct = [
            name for name in known if name.rpartition(".")[2] == option
        ] or option in config.menu()
        assert direct or any(place in name for name in found), (place, option, found)
        assert all(option in name for name in found), (place, option, found)


@pytest.mark.parametrize(
    "spoilt",
    [lambda word: word[:-1], lambda word: word[1:], lambda word: word[0] + word],
    ids=["shorter", "headless", "doubled"],
)
def test_every_option_is_met_when_it_is_misspelt(spoilt) -> None:  # type: ignore[no-untyped-def]
    known = [
        name for name in suggestions.options(config.compose()) if len(name.rpartition(".")[2]) > 4
    ]
    for name in known:
        wrong = spoilt(name.rpartition(".")[2])
        if not any(
            wrong == other.rpartition(".")[2] or wrong in other.rpartition(".")[2].split("_")
            for other in known
        ):
            assert repr(name) in suggestions.nearest(wrong, [*config.menu(), *known]), wrong


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lr=1e-3"], "unknown option 'lr' in 'lr=1e-3': did you mean 'optim.lr'?"),
        (["lr=1e-3", "norm=rms", "also=wrong"], "unknown option 'lr'.*did you mean 'optim.lr'?"),
        (["experts=3", "ffn=moe"], "did you mean 'ffn.experts'?"),
        (["experts=3"], "did you mean experts of ffn=moe?"),
        (["steps=5"], "did you mean 'trainer.max_steps'?"),
        (["trainer.lr=1"], "trainer has no option 'lr': did you mean optim.lr?"),
        (["attn.kv_heads=2"], "attn has no option 'kv_heads': did you mean kv_heads of attn=gqa"),
    ],
)
def test_an_unknown_word_is_met_with_the_option_that_it_means(words: list[str], said: str) -> None:
    with pytest.raises(ZooError, match=said.replace("?", r"\?")):
        config.compose(words)


def test_every_default_may_be_typed() -> None:
    usual = config.compose()
    words = [f"{group}={name or 'null'}" for group, name in config.defaults().items()]
    assert config.compose(words) == usual
    values = dict.fromkeys(suggestions.options(usual), usual)
    for name in values:
        for part in name.split("."):
            values[name] = values[name][part]
    typed = [f"{name}={'null' if value is None else value}" for name, value in values.items()]
    assert config.compose(typed) == usual


@pytest.mark.parametrize(
    ("chosen_", "left"),
    [
        ({"residual": {"name": "pre"}, "trainer": {"clip": 1.0}}, "a lower optim.lr"),
        (
            {"residual": {"name": "post"}, "trainer": {"clip": 1.0}},
            "a lower optim.lr or residual=pre",
        ),
        (
            {"residual": "post", "trainer": {"clip": None}},
            "a lower optim.lr, residual=pre or trainer.clip=1.0",
        ),
    ],
)
def test_advice_that_a_run_follows_already_is_left_out(
    chosen_: dict[str, object], left: str
) -> None:
    assert suggestions.ways(chosen_, "a lower optim.lr", "residual=pre", "trainer.clip=1.0") == left


@pytest.mark.parametrize(
    ("words", "advised"), [(["init=t5"], "attn.scale=1"), (["attn.scale=1"], "init=t5")]
)
def test_a_warning_of_the_scale_advises_what_is_not_chosen(words: list[str], advised: str) -> None:
    with pytest.warns(UserWarning, match="this init is made for") as warned:
        models.build(config.compose([*words, "arch.dim=16", "arch.layers=1"]))
    advice_given = str(warned[0].message).partition(": ")[2]
    assert advised in advice_given
    assert not [word for word in words if word in advice_given]


def test_a_studys_key_is_met_too() -> None:
    for wrong, right in (
        ("sedes=5", "seeds"),
        ("margn=0.1", "margin"),
        ("plan_onl=true", "plan_only"),
        ("metrik=x", "metric"),
    ):
        with pytest.raises(ZooError, match=f"unknown option .*: did you mean '{right}'"):
            run._sorted(["study=x", wrong])
    assert run._sorted(["study=x", "lr=3", "norm.eps=1"])[2] == ["lr=3", "norm.eps=1"], (
        "which composing meets"
    )


def refusal(parts: dict[str, Choice]) -> str:
    try:
        make(device="meta", arch={"layers": 1}, **parts)
    except ZooError as error:
        return str(error)
    return ""


def test_no_refusal_advises_what_is_chosen_already() -> None:
    """Of components of two groups that cannot be together, every sixth pair of which is tried."""
    every = [(group, name) for group in BASE for name in registry.entries(group)]
    pairs = [pair for pair in itertools.combinations(every, 2) if pair[0][0] != pair[1][0]]
    said = {
        pair: refusal({group: chosen(group, name) for group, name in pair}) for pair in pairs[::6]
    }
    assert any(said.values())
    for pair, sentence in said.items():
        advised = re.findall(r"(?:choose|give|write|take|or) (\w+)=(\w+)", sentence)
        assert not set(advised) & set(pair), sentence
