"""A report on files that somebody else wrote, or damaged: a sentence or a report, whatever
stands in them.
"""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ablations import report
from ablations.results import untrusted
from zoo.errors import ZooError

SUMMARY: dict[str, Any] = {
    "status": "finished",
    "error": None,
    "outcome": "learned",
    "over": None,
    "git_sha": "0" * 40,
    "parameters": 1000,
    "flops_per_token": 6000,
    "tokens": 8000,
    "steps": 10,
    "seconds": 1.5,
    "tokens_per_second": 5000.0,
    "peak_memory_bytes": 2**30,
    "unigram_nats": 3.0,
    "metrics": {"val/loss": 2.0, "val/perplexity": 7.4},
    "versions": {"torch": "2.13"},
    "host": {"cores": 2, "gpu": None},
    "earlier_sources": [],
    "sources": {"files": {"a": "1"}, "components": {"b": "c"}},
    "data": {
        "fingerprint": "f" * 64,
        "documents": 5,
        "bytes": 9000,
        "tokens": 8000,
        "unigram_nats": 3.0,
    },
}
CONFIG = {
    "trainer": {"max_steps": 10},
    "loader": {"length": 16},
    "tokenizer": {"name": "byte"},
    "norm": {"name": "rms"},
}
CURVE = [["step", "train/loss", "val/loss"], ["5", "3.0", ""], ["10", "2.5", "2.0"]]


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a nested value, itself among them."""
    inner = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def put(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a nested value with another value at one place."""
    if not path:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[path[0]] = put(copy[path[0]], path[1:], value)
    return copy


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        [
            "",
            "nan",
            "x" * 300,
            "[/red]",
            10**400,
            -(2**70),
            1e308,
            float("nan"),
            float("inf"),
            "\x00",
            "finished",
        ]
    ),
)
ODD = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
FILES = {"summary.json": SUMMARY, "config.yaml": CONFIG, "metrics.csv": CURVE}
DAMAGE = st.sampled_from(
    [(name, place) for name, content in FILES.items() for place in places(content)]
).flatmap(lambda where: st.tuples(st.just(where), ODD))


def written(folder: Path, damage: list[tuple[tuple[str, tuple[Any, ...]], Any]]) -> None:
    """A sweep of two arms with two seeds, one of whose runs is damaged so."""
    shutil.rmtree(folder, ignore_errors=True)
    for number in range(4):
        place, arm, seed = folder / str(number), ("layer", "rms")[number % 2], number // 2
        place.mkdir(parents=True)
        told = SUMMARY | {"seed": seed, "overrides": [f"norm={arm}", f"seed={seed}"]}
        contents = {"summary.json": told, "config.yaml": CONFIG, "metrics.csv": CURVE}
        for (name, path), value in damage if number == 3 else ():
            try:
                contents[name] = put(contents[name], path, value)
            except (LookupError, TypeError, ValueError):
                continue  # a damage before this one has taken the place away
        (place / "summary.json").write_text(json.dumps(contents["summary.json"]), encoding="utf-8")
        (place / "config.yaml").write_text(
            yaml.safe_dump(contents["config.yaml"]), encoding="utf-8"
        )
        rows: Any = contents["metrics.csv"] if isinstance(contents["metrics.csv"], list) else []
        lines = [",".join(map(str, row if isinstance(row, list) else [row])) for row in rows]
        (place / "metrics.csv").write_text(
            "\n".join(lines) + "\n", encoding="utf-8", errors="replace"
        )


def refusal(folder: Path) -> str:
    try:
        report.write(folder)
    except ZooError as refused:
        return str(refused)
    return ""


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(damage=st.lists(DAMAGE, min_size=1, max_size=3))
def test_a_damaged_run_gives_a_report_or_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Any
) -> None:
    for name in ("curves", "effects"):  # drawing takes most of the time
        module = importlib.import_module(f"ablations.report.figures.{name}")
        monkeypatch.setattr(module, "svg", lambda figure, about: "<svg/>")
    folder = tmp_path / "sweep"
    written(folder, damage)
    said = refusal(folder)
    assert "\n" not in said
    assert said or (folder / "report.html").exists()


@pytest.mark.parametrize("path", [path for path in places(SUMMARY) if path], ids=".".join)
def test_a_field_of_another_kind_is_named_and_left_out(path: tuple[str, ...]) -> None:
    told = put(SUMMARY, path, [["a"]])
    assert list(untrusted.misshapen(untrusted.cleaned(told))) == []
    named = list(untrusted.misshapen(told))
    free = (
        path[0] in ("metrics", "host") and len(path) > 1
    )  # whose values are looked at where they are used
    assert len(named) == (0 if free else 1)
    assert all(".".join(path).startswith(name) for name in named)
    assert list(untrusted.misshapen(SUMMARY)) == []
    assert untrusted.cleaned(SUMMARY) == SUMMARY


def test_a_list_as_fingerprint_is_said(tmp_path: Path) -> None:
    written(tmp_path / "sweep", [(("summary.json", ("data", "fingerprint")), ["a"])])
    _, _, told = report.read(tmp_path / "sweep")
    assert "Not read, because the type is not what a run writes: 3: data.fingerprint." in told


@pytest.mark.parametrize(
    "arrays",
    [
        {"document_nats": np.ones((2, 2)), "document_tokens": np.ones((2, 2))},
        {"document_nats": np.ones(3), "document_tokens": np.ones(1)},
        {"document_nats": np.array(["a"]), "document_tokens": np.ones(1)},
        {"document_nats": np.array(1.0)},
        {},
    ],
)
def test_so_is_an_evaluation_of_other_shapes(tmp_path: Path, arrays: dict[str, Any]) -> None:
    written(tmp_path / "sweep", [])
    np.savez(tmp_path / "sweep" / "3" / "evaluation.npz", **arrays)
    report.write(tmp_path / "sweep")
