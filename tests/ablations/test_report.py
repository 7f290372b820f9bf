"""The report of a study and of a sweep: what it concludes, what it refuses to show, and its
files.
"""

from __future__ import annotations

import csv
import html.parser
import itertools
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ablations import report, results
from ablations.report import wording
from ablations.results import judging
from ablations.stats import Effect
from tests.helpers.studies import SEEDS, UNIGRAM, run, study, verdicts
from zoo.errors import ZooError


def test_planted_effects_are_found_and_said(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"worse": 0.3, "better": -0.3, "same": 0.0})
    assert verdicts(folder) == {"worse": "worse", "better": "better", "same": "equivalent"}
    report.write(folder)
    rows = {
        row["arm"]: row
        for row in csv.DictReader((folder / "comparison.csv").open(encoding="utf-8"))
    }
    assert list(rows["worse"])[:11] == [
        "arm",
        "n",
        "mean",
        "difference",
        "low",
        "high",
        "p",
        "p_holm",
        "verdict",
        "parameters",
        "flops",
    ]
    assert float(rows["worse"]["difference"]) == pytest.approx(0.3, abs=0.05)
    assert (
        float(rows["worse"]["low"])
        < float(rows["worse"]["difference"])
        < float(rows["worse"]["high"])
    )
    assert (rows["base"]["verdict"], rows["base"]["n"], rows["base"]["p"]) == (
        "baseline",
        str(SEEDS),
        "",
    )
    runs = list(csv.DictReader((folder / "runs.csv").open(encoding="utf-8")))
    assert len(runs) == 4 * SEEDS
    assert runs[0]["command"] == "python -m zoo.train norm=base seed=0"
    told = (folder / "report.md").read_text(encoding="utf-8")
    assert re.search(
        r"better is better than base: a difference of −0\.(29|30)\d+ nats per token \(−1[45]\.\d"
        r" %\), 95 %",
        told,
    )


def test_the_undecided_is_said_to_be_so_with_the_seeds_that_it_takes(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"unclear": 0.02}, noise=0.05)
    assert verdicts(folder) == {"unclear": "inconclusive"}
    report.write(folder)
    told = (folder / "report.md").read_text(encoding="utf-8")
    assert "unclear against base is undecided" in told
    assert re.search(r"About \d+ seeds would decide", told)


class Page(html.parser.HTMLParser):
    """What a browser would fetch, and whether every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.fetched += [
            value
            for name, value in attributes
            if name in ("src", "href") and not value.startswith("#")
        ]
        if tag not in ("meta", "br", "wbr", "path", "use", "rect", "line", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("path", "use", "rect", "line", "circle"):
            return
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: Any) -> None:
        self.fetched += [
            value
            for name, value in attributes
            if name in ("src", "xlink:href") and not value.startswith("#")
        ]


def test_the_page_needs_no_network_and_says_text_as_text(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"<script>alert(1)</script>": 0.3, "a$b_{c}": 0.1})
    report.write(folder)
    text, page = (folder / "report.html").read_text(encoding="utf-8"), Page()
    page.feed(text)
    assert page.fetched == []
    assert page.open == []
    assert "<script" not in text
    assert "What is &lt;b&gt;each&lt;/b&gt; worth?" in text
    assert text.count("<svg") == 3  # forest, curves, positions; all runs cost the same
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 400_000
    latex = (folder / "table.tex").read_text(encoding="utf-8")
    assert r"a\$b\_\{c\}" in latex


def test_diverged_and_stuck_runs_count_and_lost_ones_are_told(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"bad": -0.2, "stuck": 0.0})
    for seed in range(3):
        shutil.rmtree(folder / "bad" / f"seed_{seed}")
        run(folder / "bad" / f"seed_{seed}", "bad", seed, None, "diverged")
    for seed in range(SEEDS):
        shutil.rmtree(folder / "stuck" / f"seed_{seed}")
        run(folder / "stuck" / f"seed_{seed}", "stuck", seed, UNIGRAM - 0.01)
    shutil.rmtree(folder / "base" / "seed_5")
    (folder / "base" / "seed_4" / "summary.json").write_text("{ cut sh", encoding="utf-8")
    found, compared, told = report.write(folder)
    assert compared is not None
    assert compared["bad"].diverged == 3
    assert compared["bad"].difference is not None
    assert compared["bad"].difference > 0, "dropping its diverged runs would have made it the best"
    assert compared["stuck"].diverged == SEEDS
    assert any("no readable summary" in line for line in told)
    assert any("3 of bad diverged: each counts at 3.2000" in line for line in told)
    assert len(found.runs) == 3 * SEEDS


def test_where_nothing_learned_there_is_no_difference(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": 0.0})
    for arm, seed in itertools.product(("base", "a"), range(SEEDS)):
        shutil.rmtree(folder / arm / f"seed_{seed}")
        run(folder / arm / f"seed_{seed}", arm, seed, None, "diverged")
    compared, _ = judging.judged(results.load(folder))
    assert compared is not None
    assert (compared["a"].difference, compared["a"].percent, compared["a"].p) == (None, None, None)
    said = wording.sentence(compared["a"], compared, "val/loss")
    assert said.startswith(
        "a: no run of it or of base learned anything, so that nothing can be said."
    )


def test_few_seeds_name_no_winner(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"far": 1.0}, seeds=3)
    assert verdicts(folder) == {"far": "exploratory"}
    report.write(folder)
    assert "3 seeds are too few for a verdict" in (folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("status", ["running", "interrupted", "missing"])
def test_half_way_there_is_no_verdict(status: str, tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"far": 1.0})
    place = folder / "far" / "seed_5"
    shutil.rmtree(place)
    if status != "missing":
        run(place, "far", 5, None, status)
    _, _, told = report.write(folder)
    assert verdicts(folder) == {"far": "exploratory"}
    assert any("1 of 12 runs are still to end" in line for line in told)
    assert "not all runs have ended (5 seeds so far)" in (folder / "report.md").read_text(
        encoding="utf-8"
    )


def test_an_accuracy_counts_a_diverged_run_as_none(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": 0.0}, metric="val/accuracy")
    for arm, seed in itertools.product(("base", "a"), range(SEEDS)):
        shutil.rmtree(folder / arm / f"seed_{seed}")
        bad = (arm, seed) == ("a", 0)
        run(
            folder / arm / f"seed_{seed}",
            arm,
            seed,
            2.0,
            "diverged" if bad else "finished",
            metrics={} if bad else {"val/accuracy": 0.5 + 0.01 * seed},
        )
    compared, _ = judging.judged(results.load(folder))
    assert compared is not None
    assert compared["a"].difference == pytest.approx(-0.5 / SEEDS)


def test_a_second_look_is_tested_harder_and_told(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": 0.1})
    content = json.loads((folder / "study.json").read_text())
    content["looks"].insert(0, {"hash": "another", "seeds": [0, 1, 2]})
    (folder / "study.json").write_text(json.dumps(content))
    _, compared, told = report.write(folder)
    assert compared is not None
    assert compared.alpha == 0.025
    assert any("look 2" in line for line in told)


def test_an_expectation_is_held_against_what_was_found(tmp_path: Path) -> None:
    _, _, told = report.write(
        study(tmp_path / "s", {"a": 0.5, "b": 0.5}, expected={"a": "worse", "b": "better"})
    )
    assert "a: worse, as expected by the study." in told
    assert "b: worse, where better was expected by the study." in told


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"data": {"fingerprint": "other", "unigram_nats": 3.0}}, "the data's fingerprint"),
        ({"over": "the hidden tokens alone"}, "what their loss is over"),
    ],
)
def test_runs_of_different_data_are_not_compared(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = study(tmp_path / "s", {"a": 0.1})
    shutil.rmtree(folder / "a" / "seed_0")
    run(folder / "a" / "seed_0", "a", 0, 2.0, **more)
    with pytest.raises(ZooError, match=f"the runs differ in {said}"):
        report.write(folder)


def test_another_vocabulary_is_another_tokenizer(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": 0.1})
    for arm, vocab in (("base", 300), ("a", 4096)):
        for seed in range(SEEDS):
            (folder / arm / f"seed_{seed}" / "config.yaml").write_text(
                f"tokenizer: {{name: bpe, vocab: {vocab}}}"
            )
    with pytest.raises(ZooError, match="the runs differ in the tokenizer"):
        report.write(folder)


def test_other_code_is_noted(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": 0.1})
    shutil.rmtree(folder / "a" / "seed_0")
    run(folder / "a" / "seed_0", "a", 0, 2.0, git_sha="b" * 40)
    assert any(
        "The runs differ in the version of the code: 2" in line for line in report.write(folder)[2]
    )


@pytest.mark.parametrize("metric", ["val/los", "<img src=x>"])
def test_a_metric_that_no_run_has_is_refused_by_name(tmp_path: Path, metric: str) -> None:
    with pytest.raises(ZooError, match=f"no run has the metric {metric!r}"):
        report.write(study(tmp_path / "s", {"a": 0.1}, metric=metric))


def test_arms_with_the_same_numbers_get_no_verdict_from_nothing(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"copy": 0.0}, noise=0.0)
    _, compared, _ = report.write(folder)
    assert compared is not None
    assert compared["copy"].verdict not in ("better", "worse")


def test_a_damaged_plan_is_told(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": 0.1})
    for content in ('{"study": {}}', '{"study": {"na'):
        (folder / "study.json").write_text(content, encoding="utf-8")
        with pytest.raises(ZooError, match="is damaged"):
            report.write(folder)


def test_an_arm_of_which_nothing_ended_is_no_number(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": 0.1, "gone": 0.0})
    for seed in range(SEEDS):
        shutil.rmtree(folder / "gone" / f"seed_{seed}")
    _, compared, _ = report.write(folder)
    assert compared is None or compared["gone"].difference is None
    row = next(
        row
        for row in csv.DictReader((folder / "comparison.csv").open(encoding="utf-8"))
        if row["arm"] == "gone"
    )
    assert row["mean"] == row["difference"] == row["p"] == ""


def test_a_sweep_that_nobody_planned_is_compared_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw, number = random.Random(1), 0
    for arm, effect in (("layer", 0.0), ("rms", 0.4)):
        for seed in range(SEEDS):
            run(tmp_path / "s" / str(number), arm, seed, 2 + effect + draw.gauss(0, 0.01))
            number += 1
    assert verdicts(tmp_path / "s") == {"norm=rms": "worse"}
    report.show(tmp_path / "s")
    out = capsys.readouterr().out
    assert "norm=rms is worse than norm=layer" in out.replace("\n", " ")
    assert "No study planned these runs" in out
    assert "No margin was stated" in out


def test_a_sweep_names_its_arms_by_what_differs(tmp_path: Path) -> None:
    for number, words in enumerate((["norm=rms"], ["ffn=relu", "norm=rms"], ["ffn=relu"], [])):
        told = ["experiment=pilot", *words, f"seed={number % 2}"]
        run(tmp_path / str(number), "", number % 2, 2.0, overrides=told)
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "summary.json").write_text("{ cut sh", encoding="utf-8")
    assert results.load(tmp_path).arms == ["norm=rms", "ffn=relu norm=rms", "ffn=relu", "default"]
    for number in range(1, 5):
        shutil.rmtree(tmp_path / str(number))
    assert results.load(tmp_path).arms == ["experiment=pilot norm=rms"], (
        "nothing differs where there is one"
    )


@pytest.mark.parametrize(
    ("metric", "percent", "said"),
    [
        ("val/loss", -3.14, " (−3.1 %)"),
        ("val/accuracy", -3.14, ""),
        ("val/loss", 1e6, ""),
        ("val/loss", None, ""),
    ],
)
def test_a_share_is_said_where_it_says_something(
    metric: str, percent: float | None, said: str
) -> None:
    assert wording._percent(Effect("a", 5, "better", percent=percent), metric) == said


def test_a_damaged_file_of_one_run_ends_no_report(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": 0.1})
    place = folder / "a" / "seed_0"
    (place / "metrics.csv").write_text("step,val/loss\n1,2\n2,x", encoding="utf-8")
    (place / "evaluation.npz").write_bytes((place / "evaluation.npz").read_bytes()[:60])
    (place / "config.yaml").write_text("{a: [", encoding="utf-8")
    one = results.load(folder).of("a")[0]
    assert (len(one.curve("val/loss")), one.by_position, one.by_document, one.config) == (
        0,
        None,
        None,
        {},
    )


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match="no run below"):
        report.write(tmp_path)


def test_the_order_of_the_runs_changes_nothing(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": 0.03, "b": -0.02})
    found = results.load(folder)
    before = judging.compare(found)
    random.Random(3).shuffle(found.runs)
    assert judging.compare(found) == before
