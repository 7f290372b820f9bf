"""Any words at all: each line of them trains two steps, or ends with a sentence, soon."""

from __future__ import annotations

import contextlib
import enum
import shutil
import signal
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from zoo import config, models, registry
from zoo.config import groups
from zoo.config.schema import Loader, Trainer
from zoo.errors import cli_errors
from zoo.launch import command_line, preflight
from zoo.launch.run_spec import RunSpec
from zoo.training import runner

SECONDS = 30  # of a line, on a machine that others share; most take a twentieth of one
TINY = [
    "arch.dim=16",
    "arch.layers=2",
    "arch.heads=2",
    "arch.length=16",
    "loader.batch_size=2",
    "schedule.warmup=1",
    "trainer.max_steps=2",
    "trainer.accelerator=cpu",
    "trainer.threads=1",
    "logger=none",
    "data.val_fraction=0.1",
    "trainer.sample=false",
]
WORTH_TRAINING = {
    "parameters": 200_000,
    "tokens": 2_000,
}  # beyond that a line is only made, on the meta device

config.discover()
CHOSEN = groups.chosen()
ODD = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "0.5",
    "-0.5",
    "1e-9",
    "1e30",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "100000",
    "100000000000",
    "9223372036854775808",
    "null",
    "None",
    "true",
    "False",
    "abc",
    "''",
    "'1'",
    "[]",
    "{}",
    "[1]",
    "[1,2]",
    "[null]",
    "[[]]",
    "{a:1}",
    "{name:rms}",
    "{name:{}}",
    "{1:2}",
    "${arch.dim}",
    "${nowhere}",
    "${oc.env:HOME}",
    "${",
    "é",
    "'é∀𝄞'",
    "/",
    "..",
    "a b",
    "a=b",
    "'a=b'",
    "\\",
    '"',
    "(",
    "0x10",
    "1_000",
    "1,2",
    "rms,layer",
    "range(1,3)",
    "choice(1,2)",
    "glob(*)",
    "???",
    "_target_",
    "'\n'",
    "'\x00'",
    "1" * 400,
    "[{attn:{window:4}},{}]",
    "[{},{},{}]",
    "[{ffn:moe}]",
    "[{norm:null}]",
]


def kinds(option: Any) -> list[Any]:
    return [kind for kind in [*typing.get_args(option.type), option.type] if kind is not type(None)]


def sensible(option: Any) -> list[str]:
    """Values of the type that an option declares."""
    kind = kinds(option)[0]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [word.name for word in kind]
    known = {
        bool: ["true", "false"],
        int: ["1", "2", "3", "4", "8"],
        float: ["0.1", "0.5", "1.0", "2.0"],
    }
    return known.get(kind, ["rms", "gelu"])


OPTIONS: dict[str, list[str]] = {}  # dotted key -> what may stand there
for group in CHOSEN:
    OPTIONS[group] = list(registry.entries(group))
    for entry in registry.entries(group).values():
        for known in fields(entry.options)[1:]:
            OPTIONS.setdefault(f"{group}.{known.name}", []).extend(sensible(known))
for node, schema in (("loader", Loader), ("trainer", Trainer)):
    OPTIONS |= {f"{node}.{known.name}": sensible(known) for known in fields(schema)}
OPTIONS |= {
    "seed": ["0", "1"],
    "resume": ["auto", "never"],
    "size": ["tiny"],
    "logger": ["none", "csv"],
}
OPTIONS |= {
    "trainer": ["cpu", "auto"],
    "logger.tags": ["[a]"],
    "data.sample_by": ["line", "document"],
}
OPTIONS |= {
    "model": config.menu()["model"],
    "experiment": ["smoke"],
    "hydra.run.dir": ["x"],
    "hydra.job.name": ["x"],
}
for name in ("python", "wandb"):  # what would read the whole library, or speak to others
    OPTIONS = {key: [value for value in values if value != name] for key, values in OPTIONS.items()}
del OPTIONS["data"], OPTIONS["data.path"]


@st.composite
def misspelt(draw: Any, key: str) -> str:
    """A key with a letter lost, doubled or exchanged, a level more or less, or a sign of Hydra's
    before it.
    """
    place = draw(st.integers(0, len(key) - 1))
    letter = draw(st.sampled_from("abz._-/@~+0 é"))
    return draw(
        st.sampled_from(
            [
                key[:place] + key[place + 1 :],
                key[:place] + letter + key[place:],
                key[:place] + letter + key[place + 1 :],
                f"{key}.{key}",
                f"{key}.name",
                key.split(".")[-1],
                f"arch.{key}",
                f"+{key}",
                f"++{key}",
                f"~{key}",
                f"{key}@x",
                f"hydra.{key}",
                f"+hydra.{key}",
                key.upper(),
                f"{key}.0",
                f"+{key}.x",
                f"{key}/x",
            ]
        )
    )


@st.composite
def words(draw: Any) -> list[str]:
    """Some words about one option, of which most could be meant."""
    key = draw(st.sampled_from(sorted(OPTIONS)))
    group, _, option = key.partition(".")
    holders = (
        [name for name, entry in registry.entries(group).items() if option in entry.defaults()]
        if group in CHOSEN
        else []
    )
    holder = (
        [f"{group}={draw(st.sampled_from(holders))}"]
        if option and holders and draw(st.integers(0, 3))
        else []
    )
    meant = st.sampled_from(OPTIONS[key] or ["1"])
    value = draw(st.one_of(meant, st.sampled_from(ODD)))
    shape = draw(st.sampled_from(["plain"] * 12 + ["name", "nested", "pattern", "bare", "sweep"]))
    if shape == "name":
        key = draw(misspelt(key))
    elif shape == "nested" and option:
        return [
            f"{group}={{name:{draw(st.sampled_from(OPTIONS.get(group) or ['x']))},"
            f"{option}:{value}}}"
        ]
    elif shape == "pattern" and option:
        return [
            f"arch.{draw(st.sampled_from(['pattern', 'first']))}=[{{{group}:{{{option}:{value}}}}}]"
        ]
    elif shape == "bare":
        return [draw(st.sampled_from([key, f"{key}=", f"={value}", f"~{key}", f"{key}:{value}"]))]
    elif shape == "sweep":
        return [f"{key}={value},{draw(meant)}", *(["-m"] if draw(st.booleans()) else [])]
    return [*holder, f"{key}={value}"]


LINES = st.lists(words(), min_size=1, max_size=2).map(
    lambda some: [word for each in some for word in each]
)


class TooLong(BaseException):
    """A line that is still at work."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    def stop(_: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def trained(words: list[str], folder: Path) -> str:
    """What `python -m zoo.train` would do with these words, and how it ends: with a sentence, or
    "" after two steps.
    """
    try:
        with cli_errors(), within(SECONDS):
            sys.argv = ["zoo.train", *words]
            arguments = command_line.parse()
            if command_line.only_asks(arguments):
                return "asks"
            for job, composed in config.jobs(arguments):
                preflight.refuse_meaningless(RunSpec(composed))
                if not toy(composed):
                    continue
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                composed["trainer"]["max_steps"] = min(2, composed["trainer"]["max_steps"])
                assert runner.run(RunSpec(composed, job), folder)["status"] == "finished"
    except SystemExit as ending:
        return str(ending.code)
    return ""


def toy(composed: dict[str, Any]) -> bool:
    """Whether it is worth training here: small, in one process, and not compiled."""
    trainer, loader, logger = composed["trainer"], composed["loader"], composed["logger"]["name"]
    alone = (
        trainer["devices"] * trainer["nodes"] == 1
        and trainer["strategy"] == "auto"
        and not loader["workers"]
    )
    size = sum(
        parameter.numel() for parameter in models.build(composed, device="meta").parameters()
    )
    lengths = loader["batch_size"] * max(loader["length"], loader["eval_length"] or 0)
    small = size < WORTH_TRAINING["parameters"] and lengths < WORTH_TRAINING["tokens"]
    return (
        small
        and alone
        and not trainer["compile"]
        and logger != "wandb"
        and trainer["accelerator"] != "gpu"
    )


def hold(line: list[str], text: Path, folder: Path) -> None:
    said = trained(["data=text", f"data.path={text}", *TINY, *line], folder)
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 1, said
    assert not said or said == "asks" or said.startswith("error: "), said


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is read from sys.argv; so that this stays as pytest was called."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))


ANY = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=60, phases=[Phase.generate], **ANY)
@given(line=LINES)
def test_any_line_trains_or_ends_with_a_sentence(
    line: list[str], text: Path, tmp_path: Path
) -> None:
    hold(line, text, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@settings(max_examples=4000, phases=[Phase.generate, Phase.shrink], **ANY)
@given(line=LINES)
def test_thousands_of_lines_train_or_end_with_a_sentence(
    line: list[str], text: Path, tmp_path: Path
) -> None:
    hold(line, text, tmp_path / "run")


@pytest.mark.parametrize(
    "line",
    [
        "trainer.threads=100000",
        "loader.workers=100000",
        "arch.layers=100000000000",
        "attn=mla attn.rope_dim=9223372036854775808",
        "arch.pattern.x=[null]",
        "+hydra.foo=3",
        "+hydra.run.foo=3",
        "hydra.run.dirr=x",
        "--resolve",
        "--package x",
        "arch.pattern=[{},{},{}]",
        "head=pooler head.classes=257",
        "+arch.x.y=1",
        "trainer.max_steps=100000000000",
        "ffn=moe ffn.experts=1000000000",
        "-m seed=range(0,100000000000)",
        "-m seed=range(0,1,0)",
        "-m seed=range(3,0)",
        "-m norm=glob(x*)",
        "loader.batch_size=1000000000",
        "hydra.sweep.dirr=x",
        "loader.eval_length=1900 loader.batch_size=1 pos=rope",
    ],
)
def test_a_line_that_once_went_through_or_broke(line: str, text: Path, tmp_path: Path) -> None:
    """What fuzzing or people found, kept: each is refused, none by an exception's own words."""
    said = trained(["data=text", f"data.path={text}", *TINY, *line.split()], tmp_path / "run")
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1
