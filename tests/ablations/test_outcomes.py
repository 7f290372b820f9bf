"""Runs that diverged or are stuck: one rule for what they count as, wherever an arm is shown,
tuned or judged.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ablations import outcomes, progress, report, results, scheduler, stats
from ablations.outcomes import MARK, Outcome
from ablations.report import figures, sections
from ablations.report.figures.curves import _costs
from ablations.report.html import Section, Table
from ablations.results import judging
from tests.helpers.studies import SEEDS, UNIGRAM, planned, study
from zoo import metrics

NOT_FINITE = [None, "NaN", "Infinity", "-Infinity", "1e200", "9" * 400, '"nan"', "true", "missing"]
LOSS = metrics.of("val/loss")


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take a second each."""
    for name in (
        "curves",
        "cost",
        "estimates",
        "interactions",
        "positions",
        "steps",
        "trials",
        "forest",
    ):
        monkeypatch.setattr(figures, name, lambda *_: "<svg/>")


def told(folder: Path, **changes: Any) -> None:
    """Change the summary of a run; of its metrics where they are given as text, just as the text
    stands.
    """
    path = folder / "summary.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    value = changes.pop("value", ...)
    content |= changes
    if value is not ...:
        content["metrics"] = {} if value == "missing" else {"val/loss": "VALUE"}
    path.write_text(json.dumps(content).replace('"VALUE"', str(value or "null")), encoding="utf-8")


def rows(folder: Path, name: str, key: str = "arm") -> dict[str, dict[str, str]]:
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return {row[key]: row for row in csv.DictReader(file)}


# What a run counts as


def drawn(number: int, lower_is_better: bool) -> tuple[list[Outcome], float | None]:
    source = random.Random(number)
    runs = []
    for place in range(12):
        value = source.choice(
            [None, float("nan"), float("inf"), source.gauss(3, 1), source.gauss(3, 1)]
        )
        status = source.choice(
            ["finished", "finished", "finished", "diverged", "failed", "running"]
        )
        runs.append(Outcome("abc"[place % 3], place, value, status, stuck=source.random() < 0.3))
    return runs, source.choice([None, 3.0])


@pytest.mark.parametrize("lower_is_better", [True, False])
@pytest.mark.parametrize("number", range(40))
def test_no_run_is_dropped_and_none_is_made_better(number: int, lower_is_better: bool) -> None:
    runs, cap = drawn(number, lower_is_better)
    counted = outcomes.settled(runs, cap, lower_is_better)
    sign = 1 if lower_is_better else -1
    finite = [run.value for run in counted if run.ended and run.value is not None]
    for before, after in zip(runs, counted, strict=True):
        if not before.ended:
            assert after == before, "what did not end says nothing"
            continue
        if not finite:
            assert after.value is None
            continue
        assert after.value is not None
        assert np.isfinite(after.value)
        if before.measured:
            assert sign * after.value >= sign * (before.value or 0.0)
        if before.bad and cap is not None:
            assert sign * after.value >= sign * cap
        if before.diverged:
            assert sign * after.value == max(sign * value for value in finite), (
                "no run is worse than one that diverged"
            )
        if not before.bad:
            assert after.value == before.value
    assert outcomes.settled(counted, cap, lower_is_better) == counted
    for arm in "abc":  # as a ladder compares two rungs alone, and a table shows one arm
        part = [run for run in counted if run.arm == arm]
        assert outcomes.settled(part, cap, lower_is_better) == part


def test_the_cap_never_makes_a_short_run_better() -> None:
    """Worse than the unigram model, a run is as bad as it is."""
    run = outcomes.outcome(
        "a", 0, {"status": "finished", "metrics": {"val/loss": 4.98}, "unigram_nats": 3.3385}, LOSS
    )
    assert run.bad
    assert outcomes.settled([run], 3.3385)[0].value == 4.98
    almost = outcomes.outcome(
        "a", 0, {"status": "finished", "metrics": {"val/loss": 3.3}, "unigram_nats": 3.3385}, LOSS
    )
    assert outcomes.settled([almost], 3.3385)[0].value == 3.3385


@pytest.mark.parametrize(
    ("metric", "level"),
    [
        ("val/loss", UNIGRAM),
        ("val/perplexity", np.exp(UNIGRAM)),
        ("val/bits_per_byte", UNIGRAM / np.log(2) * 30 / 60),
        ("val/accuracy", 0.0),
        ("train/tokens_per_second", None),
        ("train/loss", None),
    ],
)
def test_what_learned_nothing_has_a_value_in_every_metric_that_has_one(
    metric: str, level: float | None
) -> None:
    summary = {"unigram_nats": UNIGRAM, "data": {"splits": {"val": {"tokens": 30, "bytes": 60}}}}
    assert outcomes.unigram_level([summary], metrics.of(metric)) == pytest.approx(level)


def test_stuck_is_stuck_in_every_metric_of_the_loss() -> None:
    measured = {
        "val/loss": 3.19,
        "val/perplexity": 24.3,
        "val/bits_per_byte": 4.6,
        "val/accuracy": 0.2,
    }
    summary = {"status": "finished", "metrics": measured, "unigram_nats": UNIGRAM}
    stuck = {name for name in measured if outcomes.outcome("a", 0, summary, metrics.of(name)).bad}
    assert stuck == {"val/loss", "val/perplexity", "val/bits_per_byte"}


# A value that is none is a run that diverged, whatever its status says


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_finished_run_without_a_finite_value_is_reported_as_one_that_diverged(
    value: Any, tmp_path: Path
) -> None:
    reports = []
    for name, changes in (
        ("said", {"status": "diverged", "value": None}),
        ("seen", {"value": value}),
    ):
        folder = study(tmp_path / name, {"a": -0.3, "b": 0.0})
        for seed in (1, 2, 4):
            told(folder / "a" / f"seed_{seed}", **changes)
        report.write(folder)
        files = ("comparison.csv", "report.md", "table.tex", "report.html")
        reports.append([(folder / file).read_text(encoding="utf-8") for file in files])
        states = [
            row["status"]
            for row in csv.DictReader(
                io.StringIO((folder / "runs.csv").read_text(encoding="utf-8"))
            )
        ]
        assert states.count("diverged") == 3
        compared = judging.compare(results.load(folder))
        assert (compared["a"].diverged, compared["a"].verdict) == (3, "inconclusive")
        assert (compared["a"].difference or 0) > 0
    clean = [[re.sub(r"\b(said|seen)\b", "", text) for text in texts] for texts in reports]
    assert clean[0] == clean[1]


BAD = [
    {"metrics": {"val/loss": value}} for value in (None, float("nan"), float("inf"), -float("inf"))
] + [
    {"metrics": {}},
    {"status": "diverged", "metrics": {"val/loss": 0.1}},
    {"status": "failed", "metrics": {"val/loss": 0.1}},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("place", ["0/7", "0/8"])
def test_a_point_at_which_a_run_diverged_is_never_chosen(
    bad: Mapping[str, Any], place: str, tmp_path: Path
) -> None:
    losses = {"0": 1.0, "1": 4.9, "2": 4.8}  # the others are worse than the unigram model
    summaries = {
        f"{trial}/{seed}": {"metrics": {"val/loss": loss}}
        for trial, loss in losses.items()
        for seed in (7, 8)
    }
    chosen = scheduler.tuned(planned(tmp_path, summaries | {place: bad}))
    assert chosen == {"a": {"optim.lr": 3}}
    told = json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))["tuned"]["a"]
    assert told["means"] == [None, 4.9, 4.8]


def test_where_every_trial_diverged_nothing_is_chosen(tmp_path: Path) -> None:
    summaries = {f"{trial}/{seed}": {"status": "diverged"} for trial in range(3) for seed in (7, 8)}
    assert scheduler.tuned(planned(tmp_path, summaries)) == {"a": {}}


def test_the_live_table_counts_as_the_report_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = study(tmp_path / "s", {"a": 0.0})
    for seed, changes in enumerate(
        [{"value": "NaN"}, {"status": "diverged", "value": None}, {"value": 3.19}]
    ):
        told(folder / "a" / f"seed_{seed}", **changes)
    monkeypatch.setattr(figures, "forest", lambda *_: "<svg/>")
    jobs = [
        SimpleNamespace(arm=arm, seed=seed, trial=None, folder=f"{arm}/seed_{seed}")
        for arm in ("base", "a")
        for seed in range(SEEDS)
    ]
    measure = SimpleNamespace(metric="val/loss", measure=LOSS)
    plan = SimpleNamespace(
        folder=folder,
        study=measure,
        arms=[SimpleNamespace(name=arm) for arm in ("base", "a")],
        trials=list,
        jobs=lambda: jobs,
    )
    said = io.StringIO()
    watch = progress.Watch(plan, Console(file=said, width=200))  # type: ignore[arg-type]
    watch._print(watch.look())
    watch.console.print(watch.table())
    mean = results.load(folder).table.mean("a")
    text = said.getvalue()
    assert f"{mean:.4f} {MARK}" in text
    assert "4/6, 2 diverged" in text
    assert f"{MARK} With runs that learned nothing. 1 of a stuck" in " ".join(text.split())
    assert "a  seed 0  diverged" in text
    assert "nan" not in text


# One mean and one mark


def crossed(folder: Path, design: str = "factorial", **more: Any) -> Path:
    """Two factors of which the first goes wrong in one of three seeds of one arm."""
    levels = {
        "base": {"a": "0", "b": "0"},
        "A": {"a": "1", "b": "0"},
        "B": {"a": "0", "b": "1"},
        "AB": {"a": "1", "b": "1"},
    }
    study(folder, {"A": 0.1, "B": 0.1, "AB": 0.3}, levels=levels, design=design, **more)
    told(folder / "A" / "seed_0", value="NaN")
    told(folder / "A" / "seed_1", value=UNIGRAM - 0.01)
    told(folder / "A" / "seed_2", value=4.98)
    return folder


@pytest.mark.parametrize("design", ["factorial", "ladder"])
def test_an_arm_with_runs_that_learned_nothing_has_one_mean_and_a_mark_everywhere(
    design: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = crossed(tmp_path / "s", design)
    report.show(folder)
    screen = " ".join(capsys.readouterr().out.split())
    values = [
        float(value)
        for row in csv.DictReader(io.StringIO((folder / "runs.csv").read_text(encoding="utf-8")))
        if row["arm"] == "A" and row["seed"] in "345" and (value := row["value"])
    ]
    mean = float(
        np.mean([4.98, UNIGRAM, 4.98, *values])
    )  # the diverged run as the worst of all, the short one as itself
    page, text, tex = (
        (folder / name).read_text(encoding="utf-8")
        for name in ("report.html", "report.md", "table.tex")
    )
    row = rows(folder, "comparison.csv")["A"]
    assert float(row["mean"]) == pytest.approx(mean)
    assert (row["diverged"], row["baseline_diverged"]) == ("3", "0")
    for said in (screen, page, text):
        assert f"{mean:.4f} {MARK}" in said
    assert rf"{mean:.4f} \dag{{}}" in tex
    counted = rows(folder, "runs.csv", "folder")
    assert [
        float(counted[str(folder / "A" / f"seed_{seed}")]["counts_as"]) for seed in range(3)
    ] == [4.98, UNIGRAM, 4.98]
    note = f"{MARK} With runs that learned nothing. 2 of A stuck"
    assert note in row["note"]
    assert note in screen
    assert text.count(note) >= 2, "above, and below what has the mark"
    assert page.count(note) >= 2
    assert not re.search(rf"^## [^\n]+\n\n{MARK}", text, re.MULTILINE), (
        "of a section that is a picture alone, text has nothing"
    )
    assert note.replace(MARK, r"\dag{}") in tex
    assert rows(folder, "comparison.csv")["B"]["note"] == ""
    assert len(re.findall(rf">A {MARK}<", page)) >= 3, "in the pictures, too, and in their legends"


@pytest.mark.usefixtures("unpainted")
def test_what_was_computed_from_a_run_that_learned_nothing_is_marked_and_nothing_else(
    tmp_path: Path,
) -> None:
    found = results.load(crossed(tmp_path / "s"))
    compared = judging.compare(found)
    section = sections.factorial(found, compared)
    assert isinstance(section, Section)
    tables = [part for part in section.parts if isinstance(part, Table)]
    main, simple, worth = ({row[0]: MARK in row[1] for row in table.rows} for table in tables)
    assert list(main.values()) == [True] * 3
    assert simple == {
        "a=1 at b=0": True,
        "a=1 at b=1": False,
        "b=1 at a=0": False,
        "b=1 at a=1": True,
    }
    assert list(worth.values()) == [True] * 2
    clean = study(
        tmp_path / "t", {"A": 0.1, "B": 0.1, "AB": 0.3}, design="factorial", levels=found.levels
    )
    report.write(clean)
    assert all(
        MARK not in path.read_text(encoding="utf-8") for path in clean.iterdir() if path.is_file()
    )


def test_an_effect_is_marked_by_the_runs_that_are_in_it() -> None:
    """Of three levels, those that are compared: what became of the third does not touch them."""
    levels = {f"{one}{two}": {"norm": one, "ffn": two} for one in "xyz" for two in "pq"}
    draw = random.Random(0)
    runs = [
        Outcome(arm, seed, None if (arm[0], seed) == ("z", 0) else draw.gauss(2, 0.1))
        for arm in levels
        for seed in range(5)
    ]
    found = {one.name: one.capped for one in stats.factorial(runs, levels, cap=3.0).effects}
    assert not found["norm=y"]
    assert found["norm=z"]
    assert found["ffn=q"], "which is averaged over all norms"


@pytest.mark.usefixtures("unpainted")
def test_a_ladder_marks_the_steps_from_and_to_a_rung_that_learned_nothing(tmp_path: Path) -> None:
    found = results.load(crossed(tmp_path / "s", "ladder"))
    section = sections.ladder(found, judging.compare(found))
    assert isinstance(section, Section)
    table = next(part for part in section.parts if isinstance(part, Table))
    assert [(row[0], MARK in row[1], MARK in row[4]) for row in table.rows] == [
        ("A", True, True),
        ("B", True, False),
        ("AB", False, False),
    ]
    steps = [float(row[1].split()[0].replace("−", "-")) for row in table.rows]
    whole = float(table.rows[-1][4].replace("−", "-"))
    assert sum(steps) == pytest.approx(whole, abs=3e-4), "a run counts the same in each step"


def test_colours_are_for_the_best_also_of_what_diverged(tmp_path: Path) -> None:
    """An arm whose only finished run is better than those of the others is not the best."""
    folder = study(
        tmp_path / "s", {f"arm{number}": number / 10 for number in range(1, 11)}, seeds=2
    )
    told(folder / "arm1" / "seed_0", status="diverged", value=None)
    assert list(figures.colours(results.load(folder)))[1] == "arm2"


def test_a_run_that_diverged_has_a_point_where_cost_is_drawn(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": 0.1}, seeds=2)
    told(folder / "a" / "seed_0", value="NaN", parameters=2000)
    assert ("a", 2000.0, UNIGRAM) in _costs(results.load(folder), "parameters")


@pytest.mark.usefixtures("unpainted")
def test_the_loss_by_position_and_by_document_is_not_that_of_the_runs_that_are_left(
    tmp_path: Path,
) -> None:
    folder = study(tmp_path / "s", {"a": 0.1}, seeds=3)
    nats = np.ones(8)
    nats[3] = np.nan
    np.savez(
        folder / "a" / "seed_0" / "evaluation.npz",
        position_nats=nats,
        position_tokens=np.ones(8),
        document_nats=nats,
        document_tokens=np.ones(8),
    )
    told(folder / "a" / "seed_0", value="NaN")
    found = results.load(folder)
    assert found.of("a")[0].by_document is found.of("a")[0].by_position is None
    section = sections.positions(found)
    assert section is not None
    assert section.parts[0] == "Not here, as runs of them diverged: a."


def test_a_trial_that_diverged_counts_as_the_worst_where_no_other_value_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        figures,
        "trials",
        lambda _, best: json.dumps({arm: list(values) for arm, values in best.items()}),
    )
    tune = {"grid": {"optim.lr": [1, 2]}, "seeds": [100]}
    folder = study(tmp_path / "s", {"a": 0.1}, tune=tune, metric="train/tokens_per_second")
    content = json.loads((folder / "study.json").read_text())
    points = [{"optim.lr": rate} for rate in (1, 2)]
    content["tuned"] = {
        arm: {"point": points[1], "at_the_edge": [], "points": points, "means": means}
        for arm, means in (("base", [100.0, 200.0]), ("a", [None, 400.0]))
    }
    found = results.Results(folder, results.load(study(tmp_path / "t", {"a": 0.1})).runs, content)
    section = sections.tuning(found)
    assert section is not None
    drawn = json.loads(section.parts[-1].svg)  # type: ignore[union-attr]
    assert drawn == {"base": [150.0, 175.0], "a": [250.0, 325.0]}, (
        "of 100 and 400, one trial has 250"
    )
    assert {
        row[0]: row[3] for part in section.parts if isinstance(part, Table) for row in part.rows
    } == {"base": "200.0000", "a": "400.0000"}, "the best is the most"
