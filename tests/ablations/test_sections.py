"""What a report says below its first screen, of planted effects, and what it leaves out where
there is nothing to say.
"""

from __future__ import annotations

import csv
import html
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablations import design, report, stats
from ablations.report import figures, sections, wording
from ablations.report.html import Picture, Section, Table
from ablations.report.sections.factorial import furthest_pairs
from ablations.results import judging
from tests.helpers.studies import SEEDS, UNIGRAM, judged, run, study


@pytest.fixture(autouse=True)
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take a second each, and are looked at in test_figures.py."""
    for name in ("curves", "cost", "estimates", "interactions", "positions", "steps", "trials"):
        monkeypatch.setattr(figures, name, lambda *_: "<svg/>")


def table(section: Section | None, number: int = 0) -> dict[str, dict[str, str]]:
    """The rows of a section's table by their first cell."""
    assert section is not None
    told = [part for part in section.parts if isinstance(part, Table)][number]
    return {row[0]: dict(zip(told.columns, row, strict=True)) for row in told.rows}


def prose(section: Section | None) -> str:
    assert section is not None
    return " ".join(part for part in section.parts if isinstance(part, str))


def number(cell: str) -> float:
    return float(cell.replace("−", "-"))


def crossed(folder: Path, factors: int, rows: Any, means: Any, **more: Any) -> Path:
    """A design of factors named a, b, ..., of choices `a.x=0` and `a.x=1`; the row of zeros is
    the baseline.
    """
    names = "abcdefgh"[:factors]
    arms = {"base" if not any(row) else "".join(map(str, row)): row for row in rows}
    levels = {
        arm: {name: f"{name}.x={level}" for name, level in zip(names, row, strict=True)}
        for arm, row in arms.items()
    }
    return study(
        folder, {arm: means(*row) for arm, row in arms.items() if any(row)}, levels=levels, **more
    )


def test_a_factorial_shows_effects_interactions_and_shapley_values(tmp_path: Path) -> None:
    rows = itertools.product((0, 1), repeat=3)
    found, compared = judged(
        crossed(tmp_path / "s", 3, rows, lambda a, b, c: 0.2 * a + 0.4 * b * c, design="factorial")
    )
    section = sections.factorial(found, compared)
    effects, simple, worth = (table(section, number) for number in range(3))
    truth = {"a=1": 0.2, "b=1": 0.2, "c=1": 0.2, "a=1:b=1": 0, "a=1:c=1": 0, "b=1:c=1": 0.4}
    assert effects.keys() == truth.keys()
    assert [number(effects[name]["estimate"]) for name in truth] == pytest.approx(
        list(truth.values()), abs=0.02
    )
    assert {name for name, row in effects.items() if row["p (Holm)"] == "< .001"} == {
        "a=1",
        "b=1",
        "c=1",
        "b=1:c=1",
    }
    assert {
        name: row["not by itself: depends on"] for name, row in effects.items()
    } == dict.fromkeys(truth, "–") | {"b=1": "c=1", "c=1": "b=1"}
    assert [
        number(simple[f"b=1 at {level}"]["estimate"]) for level in ("a=0", "a=1", "c=0", "c=1")
    ] == pytest.approx([0.2, 0.2, 0.0, 0.4], abs=0.02)
    assert [number(row["estimate"]) for row in worth.values()] == pytest.approx(
        [0.2, 0.2, 0.2], abs=0.02
    )
    assert sum(number(row["estimate"]) for row in worth.values()) == pytest.approx(
        compared["111"].difference, abs=2e-4
    )
    pictures = [part.svg for part in section.parts if isinstance(part, Picture)] if section else []
    assert len(pictures) == 2


def test_a_main_effect_that_depends_on_another_factor_is_not_left_to_be_read_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever the report stands: here one that is nothing on average, as it is worth as much
    one way as the other.
    """
    rows = list(itertools.product((0, 1), repeat=2))
    folder = crossed(
        tmp_path / "s", 2, rows, lambda a, b: 0.2 * a - 0.4 * a * b, design="factorial"
    )
    told = everywhere(folder, capsys)
    said = re.compile(
        r"The main effects of a=1 and b=1 are not to be read by themselves, as they interact "
        r"\(a=1:b=1 .{1,3}0\.(39|40)\d+, p .{1,3} \.001\)"
    )
    simple = re.compile(r"a=1 at b=0 .{1,3}0\.(19|20)\d+, a=1 at b=1 .{1,3}0\.(19|20|21)\d+")
    for where, text in told.items():
        assert said.search(text), where
        assert simple.search(text), where
    plain = crossed(tmp_path / "t", 2, rows, lambda a, b: 0.2 * a + 0.2 * b, design="factorial")
    assert wording.warnings(*judged(plain)) == []
    assert "not by itself" not in str(sections.factorial(*judged(plain)))


def test_the_interaction_that_is_largest_is_drawn_first(tmp_path: Path) -> None:
    rows = itertools.product((0, 1), repeat=3)
    found, _ = judged(
        crossed(tmp_path / "s", 3, rows, lambda a, b, c: 0.2 * a + 0.4 * b * c, design="factorial")
    )
    values = found.table.values
    one, two, means = furthest_pairs(values, judging.levels(found))[0]
    assert (one, two) == ("b", "c")
    assert means["1", "1"] - means["0", "0"] == pytest.approx(0.4, abs=0.02)


def test_a_fraction_says_of_what_it_is_one(tmp_path: Path) -> None:
    found, compared = judged(
        crossed(
            tmp_path / "s", 6, design.fraction(6), lambda *row: 0.1 * row[0], design="fractional"
        )
    )
    section = sections.factorial(found, compared)
    assert "resolution IV: each main effect is aliased with interactions of 3 factors" in prose(
        section
    )
    effects = table(section)
    assert number(effects["a=1"]["estimate"]) == pytest.approx(0.1, abs=0.02)
    assert any(" = " in name for name in effects)
    assert "Shapley" not in prose(section), "not every set of factors was run"


def test_factors_that_vary_together_are_one(tmp_path: Path) -> None:
    levels = {"base": {"a": "a.x=0", "b": "b.x=0"}, "both": {"a": "a.x=1", "b": "b.x=1"}}
    found, _ = judged(study(tmp_path / "s", {"both": 0.1}, levels=levels, pairs=[["a", "b"]]))
    assert judging.levels(found) == {"base": {"a & b": "0 & 0"}, "both": {"a & b": "1 & 1"}}


def test_a_design_that_cannot_be_estimated_says_why(tmp_path: Path) -> None:
    rows = [(0, 0), (1, 1)]
    found, compared = judged(crossed(tmp_path / "s", 2, rows, lambda a, b: 0.1, design="factorial"))
    assert "Not estimated: these arms cannot tell" in prose(sections.factorial(found, compared))
    other = judged(study(tmp_path / "t", {"a": 0.1}))
    assert sections.factorial(*other) is sections.ladder(*other) is None


def test_a_ladder_has_steps_and_says_that_the_order_decides(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"1": -0.3, "2": -0.3, "3": -0.1}, design="ladder")
    found, compared = judged(folder)
    section = sections.ladder(found, compared)
    rows = table(section)
    assert [number(row["step"]) for row in rows.values()] == pytest.approx(
        [-0.3, 0.0, 0.2], abs=0.02
    )
    assert np.cumsum([number(row["step"]) for row in rows.values()]) == pytest.approx(
        [number(row["from the foot"]) for row in rows.values()], abs=3e-4
    )
    assert rows["2"]["p (paired t, Holm)"] > ".05"
    assert "The order decides" in prose(section)
    assert any("not of the last" in line for line in wording.remarks(found, compared))
    for seed in range(SEEDS):
        shutil.rmtree(folder / "2" / f"seed_{seed}")
    rows = table(sections.ladder(*judged(folder)))
    assert rows["2"]["step"] == rows["3"]["step"] == "–"
    assert number(rows["3"]["from the foot"]) == pytest.approx(-0.1, abs=0.02)


def evaluated(folder: Path, shift: Any, documents: int = 50) -> None:
    """Give each run the loss by document; `shift` is that of an arm in a seed."""
    generator = np.random.default_rng(0)
    easy, tokens = (
        generator.normal(2, 0.5, documents),
        generator.integers(5, 50, documents) * (np.arange(documents) > 0),
    )
    for place in sorted(folder.glob("*/seed_*")):
        arm, seed = place.parent.name, int(place.name.removeprefix("seed_"))
        losses = easy + shift(arm, seed) + generator.normal(0, 0.02, documents)
        np.savez(place / "evaluation.npz", document_nats=losses * tokens, document_tokens=tokens)


def test_documents_are_paired_and_say_what_they_generalise_over(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": 0.0, "cut": 0.0, "other": 0.0})
    evaluated(folder, lambda arm, seed: (0.1 + 0.05 * (seed - 2.5)) * (arm == "a"))
    for seed in range(SEEDS):
        content = (folder / "cut" / f"seed_{seed}" / "evaluation.npz").read_bytes()
        (folder / "cut" / f"seed_{seed}" / "evaluation.npz").write_bytes(
            content[: len(content) // 2]
        )
        np.savez(
            folder / "other" / f"seed_{seed}" / "evaluation.npz",
            document_nats=np.ones(9),
            document_tokens=np.ones(9),
        )
    section = sections.documents(*judged(folder))
    rows = table(section)
    assert rows.keys() == {"a"}, "a file that is cut and one of other documents give no number"
    assert (rows["a"]["seeds"], rows["a"]["documents"]) == (str(SEEDS), "49"), (
        "a document without a token counts nowhere"
    )
    assert number(rows["a"]["difference"]) == pytest.approx(0.1, abs=0.01)
    alone, both = (
        [number(end) for end in rows["a"][column].split(" … ")]
        for column in ("95 % over documents", "95 % over documents and seeds")
    )
    assert alone[1] - alone[0] < 0.01
    assert both[1] - both[0] == pytest.approx(
        2 * 2.571 * 0.05 * np.std(range(6), ddof=1) / 6**0.5, rel=0.1
    )
    assert "nothing of other seeds" in prose(section)


def everywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the report says, in each of its places, as one line."""
    report.show(folder)
    told = {
        name: (folder / name).read_text(encoding="utf-8")
        for name in ("report.md", "table.tex", "report.html")
    }
    told = {
        name: html.unescape(text).replace("<wbr>", "").replace("$-$", "−")
        for name, text in told.items()
    }
    return {
        name: " ".join(text.split())
        for name, text in (told | {"screen": capsys.readouterr().out}).items()
    }


def test_better_by_less_than_the_margin_is_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = study(tmp_path / "s", {"a": -0.04, "b": 0.04, "far": -0.3, "near": 0.0})
    assert judged(folder)[1]["a"].verdict == "better"
    for where, text in everywhere(folder, capsys).items():
        for arm, verdict in (("a", "better"), ("b", "worse")):
            said = (
                f"{arm}: {verdict}" if where == "table.tex" else f"{arm} is {verdict} than base"
            ) + r", by less than what was said to matter \(±0.05\)"
            assert re.search(said.replace("±", ".{1,7}"), text), (where, arm)
        assert "base, by less" not in text.split("far is better than ")[-1][:20]
        assert text.count("by less than what was said to matter") == 2


@pytest.mark.parametrize(
    ("documents", "apart", "said", "unsaid"),
    [
        (41, 1.0, "which includes 0; 40 documents.", "too few"),
        (41, 0.0, "documents and seeds −0.3", "includes 0"),
        (4, 1.0, "which includes 0; 3 documents, too few to speak for others", "beyond"),
        (16, 0.0, "15 documents, too few to speak for others", "includes 0"),
        (2, 0.0, "Judged on 1 document, too few to speak for others", "includes 0"),
    ],
)
def test_a_verdict_is_not_without_what_other_documents_would_say(
    documents: int,
    apart: float,
    said: str,
    unsaid: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The arm is better by its mean in all seeds; `apart` makes it so in some documents only."""
    folder = study(tmp_path / "s", {"a": -0.3})
    evaluated(
        folder,
        lambda arm, seed: (arm == "a") * (apart * 3 * np.sin(np.arange(documents)) - 0.3),
        documents,
    )
    found, compared = judged(folder)
    assert compared["a"].verdict == "better"
    for where, text in everywhere(folder, capsys).items():
        assert said in text, where
        assert unsaid not in text, where
    row = next(
        row
        for row in csv.DictReader((folder / "comparison.csv").open(encoding="utf-8"))
        if row["arm"] == "a"
    )
    assert row["documents"] == str(documents - 1)
    paired = judging.paired_documents(found, "a")
    if documents > 2 and paired is not None:
        over = stats.documents(paired)
        assert (float(row["documents_low"]), float(row["documents_high"])) == pytest.approx(
            (over.low, over.high)
        )


def test_documents_say_nothing_of_another_metric(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": -0.3}, metric="val/bits_per_byte")
    evaluated(folder, lambda arm, seed: 0.0)
    assert judged(folder)[1]["a"].documents is None


def test_equivalent_beside_documents_beyond_the_margin_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = study(tmp_path / "s", {"a": 0.0})
    evaluated(folder, lambda arm, seed: (arm == "a") * np.sin(np.arange(41)), 41)
    for where, text in everywhere(folder, capsys).items():
        assert "which reaches beyond the margin; 40 documents." in text, where


def budgets(folder: Path, losses: dict[str, float], **more: Any) -> Path:
    """A study of one arm beside the baseline, and of the baseline at other budgets: max_steps by
    the arm's name.
    """
    study(folder, {arm: loss - 2 for arm, loss in losses.items()}, noise=0.001, **more)
    for place in folder.glob("*/seed_*"):
        arm, summary = place.parent.name, json.loads((place / "summary.json").read_text())
        steps = int(arm) if arm.isdigit() else 100
        words = ["norm=rms"] if arm == "rms" else []
        summary |= {
            "tokens": steps * 10,
            "overrides": [*words, f"trainer.max_steps={steps}", f"seed={summary['seed']}"],
        }
        (place / "summary.json").write_text(json.dumps(summary))
    return folder


def test_effects_as_compute_come_from_runs_of_other_budgets(tmp_path: Path) -> None:
    folder = budgets(tmp_path / "s", {"rms": 1.8, "50": 2.4, "400": 1.6})
    rows = table(sections.cost(*judged(folder)))
    assert rows.keys() == {"rms"}
    assert number(rows["rms"]["equivalent"].removeprefix("× ")) == pytest.approx(2, rel=0.02), (
        "half way, of a logarithm"
    )
    assert rows["rms"]["from"] <= rows["rms"]["equivalent"] <= rows["rms"]["to"]
    beyond = budgets(tmp_path / "t", {"rms": 1.2, "50": 2.4, "400": 1.6})
    assert table(sections.cost(*judged(beyond)))["rms"]["equivalent"] == "more than × 4.00", (
        "never extrapolated"
    )


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ({"rms": 1.8}, "Add the factor `budget: [trainer.max_steps=N"),
        ({"rms": 1.8, "50": 1.5}, "does not fall with compute"),
    ],
)
def test_compute_that_is_not_known_says_how_to_know_it(
    tmp_path: Path, losses: dict[str, float], said: str
) -> None:
    section = sections.cost(*judged(budgets(tmp_path / "s", losses)))
    assert said in prose(section)
    assert not any(isinstance(part, Table) for part in section.parts)


def test_tuning_shows_what_was_chosen_and_flags_edges(tmp_path: Path) -> None:
    folder = study(
        tmp_path / "s",
        {"a": 0.1},
        tune={"grid": {"optim.lr": [1, 2, 3], "optim.beta": [0.9]}, "seeds": [100]},
    )
    points = [{"optim.lr": rate, "optim.beta": 0.9} for rate in (1, 2, 3)]
    content = json.loads((folder / "study.json").read_text())
    content["tuned"] = {
        "base": {
            "point": points[1],
            "at_the_edge": ["optim.beta"],
            "points": points,
            "means": [2.3, 2.1, 2.2],
        },
        "a": {
            "point": points[2],
            "at_the_edge": ["optim.lr", "optim.beta"],
            "points": points,
            "means": [None, 2.2, 2.0],
        },
    }
    (folder / "study.json").write_text(json.dumps(content))
    found, _ = judged(folder)
    section = sections.tuning(found)
    rows = table(section)
    assert (rows["base"]["at the edge"], rows["a"]["at the edge"]) == ("–", "optim.lr"), (
        "a grid of one value has no edge"
    )
    assert (rows["base"]["chosen"], rows["a"]["trials that ended well"]) == (
        "optim.lr=2, optim.beta=0.9",
        "2/3",
    )
    assert (rows["base"]["best mean val/loss"], rows["a"]["best mean val/loss"]) == (
        "2.1000",
        "2.0000",
    )
    assert f"A trial that diverged counts at {UNIGRAM:.4f}" in prose(section)
    assert "optim.lr: 1, 2, 3" in prose(section)


def test_divergence_is_shown_where_there_was_any(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"bad": 0.1, "good": 0.1})
    assert sections.divergence(*judged(folder)) is None
    for seed, (value, status) in enumerate(
        [(None, "diverged")] * 4 + [(UNIGRAM, "finished"), (None, "failed")]
    ):
        shutil.rmtree(folder / "bad" / f"seed_{seed}")
        run(folder / "bad" / f"seed_{seed}", "bad", seed, value, status)
    rows = table(sections.divergence(*judged(folder)))
    assert list(rows["bad"].values()) == ["bad", "5", "4", "1", "1", ".002"], "1 / C(11, 5) by hand"
    assert rows.keys() == {"base", "bad"}
