"""Every table at 80 columns and in a pipe: no word is broken, and missing columns are named."""

from __future__ import annotations

import ast
import io
import json
import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ablations import plan, progress, report, run
from ablations.plan import display
from ablations.report import writing
from ablations.results import Results, Run
from tests.helpers.modules import modules
from zoo import cost, metrics
from zoo.components import __main__ as components
from zoo.cost import complexity as inspect
from zoo.cost.tables import plan_table
from zoo.optim import coordinates
from zoo.training import result_screen
from zoo.utils import tables

ARMS = [
    "base",
    "attn=gqa,norm=rms,residual=sandwich",
    "an arm with spaces and a longword_that_is_one",
]
VERDICTS = ["baseline", "inconclusive", "exploratory"]


def shown(*consoles: Console) -> list[str]:
    # type: ignore[attr-defined]
    return [re.sub(r"\x1b\[[0-9;]*m", "", str(console.file.getvalue())) for console in consoles]


def terminal(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True)


def pipe() -> Console:
    return tables.console(io.StringIO())


def menu() -> Table:
    return components.table(components.menu())


def costs() -> Table:
    from zoo import config

    composed = config.compose(["model=gpt2"])
    model = cost.made(composed)
    return cost.table(
        cost.of(composed, model) | {"training_memory_bytes": 123_456_789}, "model=gpt2"
    )


def widths() -> Table:
    kinds = ("embedding", "attention", "feed-forward", "logits")
    return coordinates.table(
        {2**power: {kind: [1.234e-5 * power] * 3 for kind in kinds} for power in range(4, 14)}
    )


def lengths() -> Table:
    each = {figure: {"values": [1.5e9] * 12, "exponent": 1.5} for figure in inspect.FIGURES}
    return inspect.table([2**power for power in range(6, 18)], {"mha, eager": each, "lstm": each})


def a_plan() -> Any:
    costs = {
        "parameters": 123_456_789,
        "active": 23_456_789,
        "flops_per_token": 987_654_321,
        "tokens": 100_000_000,
        "training_flops": 10**15,
    }
    arms = [
        SimpleNamespace(name=name, differs=[f"word={name}"], levels={}, matched="ffn.hidden=304")
        for name in ARMS
    ]
    study = SimpleNamespace(
        name="study",
        question="?",
        metric="val/loss",
        match="params",
        seeds=[0, 1],
        tune=None,
        margin=None,
        hash="0" * 16,
        sd=0.01,
        measure=metrics.of("val/loss"),
    )
    each = [costs, costs, costs | {"parameters": 99_999}]
    return SimpleNamespace(
        study=study, folder=Path("studies/x"), arms=arms, costs=each, jobs=list, trials=list
    )


class Taken(Exception):
    """Ends a command as it comes to its table."""


def taken(call: Callable[[], Any]) -> Table:
    """The first table that a command comes to."""

    def take(table: Table, *_: Any) -> None:
        raise Taken(table)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "show", take)
        with pytest.raises(Taken) as found:
            call()
    return found.value.args[0]


def planned() -> Table:
    return taken(lambda: plan.show(a_plan(), pipe()))


def a_sweep() -> Table:
    words = [
        "norm=layer,rms",
        "arch.dim=16",
        "arch.layers=1",
        "data=python",
        "trainer.max_steps=100000",
        "ffn=gelu,swiglu",
    ]
    return taken(
        lambda: run._show_sweep(Namespace(overrides=words, config_dir=None, multirun=True))
    )


def watched() -> Table:
    told = SimpleNamespace(**vars(a_plan()))
    watch = progress.Watch.__new__(progress.Watch)
    job = SimpleNamespace(arm=ARMS[1], trial=None, folder="x", seed=0)
    watch.plan, watch.jobs, watch.before, watch.begun = told, [job], 0, 0.0
    watch.ended = {"x": {"status": "diverged", "unigram_nats": 3.5}}
    return watch.table()


TABLES: dict[str, tuple[Callable[[], Table], list[str]]] = {
    "zoo.components.__main__": (menu, []),
    "zoo.cost.tables": (costs, []),
    "zoo.optim.coordinates": (widths, [f"dim {2**power}" for power in range(4, 12)]),
    "zoo.cost.complexity": (lengths, [f"{2**power:,}" for power in range(6, 16)]),
    "ablations.run": (a_sweep, []),
    "ablations.plan.display": (planned, list(display.SPARE)),
    "ablations.progress": (watched, list(progress.SPARE)),
}


def whole(table: Table, text: str) -> None:
    """Every word of every cell that is shown stands unbroken in a line."""
    lines = text.splitlines()
    for column in table.columns:
        for cell in [str(column.header), *map(str, column.cells)]:
            for word in Text.from_markup(cell).plain.split():
                assert any(word in line for line in lines), (word, text)


@pytest.mark.parametrize("name", TABLES)
def test_no_word_of_a_table_is_broken(name: str) -> None:
    make, spare = TABLES[name]
    narrow, piped = terminal(), pipe()
    table, other = make(), make()
    headings = [str(column.header) for column in table.columns]
    tables.show(table, narrow, spare)
    tables.show(other, piped, spare)
    at_80, in_pipe = shown(narrow, piped)
    whole(table, at_80)
    whole(other, in_pipe)
    assert [str(column.header) for column in other.columns] == headings, (
        "nothing is left out of a pipe"
    )
    assert all(len(line.rstrip()) <= 80 for line in at_80.splitlines())
    kept = [str(column.header) for column in table.columns]
    gone = [heading for heading in spare if heading not in kept]
    assert gone == spare[: len(gone)], "in the order that is stated"
    assert ("no room for" in at_80) == bool(gone)


@pytest.mark.parametrize("width", [80, None])
def test_first_screen_of_a_report_fits(width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    where = terminal(width) if width else pipe()
    runs = [
        Run(
            arm,
            seed,
            Path("x"),
            {
                "status": "finished",
                "metrics": {"val/loss": 3.0 + seed},
                "parameters": 10**9,
                "overrides": [arm],
            },
        )
        for arm in ARMS
        for seed in range(2)
    ]
    effects = tuple(
        SimpleNamespace(arm=arm, difference=-0.1234, verdict=verdict, bad=False)
        for arm, verdict in zip(ARMS[1:], VERDICTS[1:], strict=True)
    )
    monkeypatch.setattr(tables, "console", lambda *_: where)
    monkeypatch.setattr(writing, "sentences", lambda *_: [])
    writing.print_arms(
        Results(Path("a/folder"), runs), SimpleNamespace(effects=effects, cap=None), ["a remark"]
    )  # type: ignore[arg-type]
    (text,) = shown(where)
    for word in (
        *VERDICTS,
        *" ".join(ARMS).split(),
        "−0.1234",
        "finished" if width is None else "3.5000",
    ):
        assert any(word in line for line in text.splitlines()), (word, text)


def test_report_prints_its_result_before_it_draws_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw(*_: Any) -> None:
        raise Taken

    for number in range(2):
        (tmp_path / str(number)).mkdir()
        summary = {
            "status": "finished",
            "seed": number,
            "overrides": ["norm=rms"],
            "metrics": {"val/loss": 2},
        }
        file = tmp_path / str(number) / "summary.json"
        file.write_text(json.dumps(summary), encoding="utf-8")
    monkeypatch.setattr(writing, "_write", draw)
    with pytest.raises(Taken):
        report.show(tmp_path)
    assert "2 finished" in capsys.readouterr().out


def test_only_a_name_too_long_for_the_width_is_cut() -> None:
    table = Table("arm", "verdict", box=None, padding=(0, 2, 0, 0))
    table.add_row("x" * 200, "inconclusive")
    narrow = terminal(40)
    tables.show(table, narrow)
    (text,) = shown(narrow)
    assert "inconclusive" in text
    assert text.count("x") == 200, "all of the name is there"


def test_long_cells_fold_before_labels() -> None:
    table, where = Table("what", "value", "about", box=None), terminal(60)
    table.add_row(
        "bits per byte", "7.902", "of the hidden tokens alone, which are read from both sides"
    )
    tables.show(table, where)
    lines = shown(where)[0].splitlines()
    assert any("bits per byte" in line and "7.902" in line for line in lines)
    assert any("both sides" in line for line in lines)


def test_every_module_that_prints_a_table_is_tested() -> None:
    """Each is in TABLES, or has a test of its own here or where its screen is tested."""
    own = {
        "ablations.report.writing",
        "zoo.training.result_screen",
        "zoo.utils.tables",
    }
    making = set()
    for name, path in modules().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        if imported & {"rich.table.Table", "rich.table"}:
            making.add(name)
    assert making == {*TABLES, *own}


def test_result_and_multi_gpu_plan_fit_without_folding() -> None:
    parts = (
        "micro_batches",
        "tokens",
        "seconds",
        "computing",
        "exposed",
        "data_parallel",
        "update",
        "mfu",
        "tensor_parallel",
    )
    told = {
        "step": dict.fromkeys(parts, 1234567.0),
        "plan": {"gpus": 512, "gpu": "h100"},
        "memory_bytes": 2**36,
        "available_bytes": 2**37,
        "memory": {"weights, gradients and the state of the optimiser": 2**35},
        "assumptions": [],
        **dict.fromkeys(
            ("tokens_per_second_per_gpu", "days", "tokens", "steps", "gpu_hours", "flops"),
            123456789.0,
        ),
    }
    metrics = {"val/loss": 1.0, "val/perplexity": 2.7, "val/bits_per_byte": 2.0}
    summary = {
        "metrics": metrics,
        "parameters": 10**9,
        "tokens": 10**9,
        "yardsticks": dict.fromkeys(result_screen.BASELINES, 5.0),
        "flops_per_token": 1e9,
        "steps": 10**6,
        "choices": {},
        "data": {"documents": 10**6, "bytes": 10**9, "fingerprint": "0123456789ab"},
        "tokens_per_second": 1e5,
        "peak_memory_bytes": 10**9,
        "unigram_nats": 3.0,
        "outcome": "stuck",
    }
    for make in (terminal, pipe):
        where = make()
        tables.show(plan_table(told, "plan"), where)
        result_screen.show(summary, Path("my runs/a b"), where)
        (text,) = shown(where)
        for word in (
            "optimiser",
            "GiB",
            "compressor,",
            "fingerprint",
            "0123456789ab",
            "residual=pre.",
        ):
            assert any(word in line for line in text.splitlines()), (word, text)
        assert "'ckpt=my runs/a b'" in text
