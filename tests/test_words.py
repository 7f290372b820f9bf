"""What is written in Hydra's grammar is read as it was meant."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zoo.config import overrides

ODD = [
    "/x/a,b.txt",
    "it's (1)",
    "",
    "null",
    "true",
    "1e-3",
    "inf",
    "0x1",
    "'a'",
    "\\",
    "a\\'",
    "range(1)",
    " a b ",
    "${x}",
    "007",
    "[x]",
    "{a:b}",
    "a=b",
    "C:\\x",
    "größe",
    "$5",
    "a\nb",
]
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=9) | st.text(
    ",'\"\\[]{}()=:$ \t\na1é", max_size=9
)
leaves = (
    text
    | st.sampled_from(ODD)
    | st.integers()
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False)
)
keys = st.from_regex(
    r"[a-z]{3}_(\.[a-z]+)?", fullmatch=True
)  # a key has no quotes in Hydra's grammar
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(values)
@example([*ODD])
@example({"name": "swiglu", "hidden": 8, "path": ODD})
def test_hydra_reads_every_value_as_it_was_written(value: Any) -> None:
    read = overrides.parse(f"key={overrides.typed(value)}")
    assert not read.is_sweep_override()
    assert repr(read.value()) == repr(value), "types too"


@pytest.mark.parametrize("text", ["swiglu", "a b", "/x/y.txt", "1.5x", "", "a-b_c"])
def test_a_plain_word_is_not_quoted(text: str) -> None:
    assert overrides.typed(text) == text


@pytest.mark.parametrize(
    ("line", "split"),
    [
        ("schedule.warmup=5 norm=rms", ["schedule.warmup=5", "norm=rms"]),
        ("data.path='a b=c' norm=rms", ["data.path='a b=c'", "norm=rms"]),
        ("ffn.expert={name: swiglu} norm=rms", ["ffn.expert={name: swiglu}", "norm=rms"]),
        ("data.path=/x/my file.txt", ["data.path=/x/my file.txt"]),
        (" a.b=don't norm=rms ", ["a.b=don't", "norm=rms"]),
    ],
)
def test_a_line_is_split_at_its_words_only(line: str, split: list[str]) -> None:
    assert overrides.split(line) == split


def test_the_last_value_of_a_key_counts_and_has_no_quotes() -> None:
    told = ["hydra.run.dir=a", "norm=rms", "hydra.run.dir='it is (here)'"]
    assert overrides.given("hydra.run.dir", told) == "it is (here)"
    assert overrides.given("hydra.sweep.dir", told) is None
