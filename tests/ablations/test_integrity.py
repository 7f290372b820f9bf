"""What was planned, and of what the runs were made, cannot change without the report saying so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ablations import plan, report, results, scheduler, specification
from ablations import study as studies
from ablations.report import __main__ as command
from ablations.report import wording
from ablations.results import judging
from tests.helpers.studies import SEEDS, run, study, verdicts
from zoo import config
from zoo.errors import ZooError
from zoo.tracking import provenance

TINY = [
    "arch.dim=16",
    "arch.layers=1",
    "arch.heads=2",
    "arch.length=16",
    "tokenizer=byte",
    "logger=none",
]
NORM = {
    "factors": {"norm": ["norm=layer", "norm=rms"]},
    "expected": {"norm=rms": "better"},
    "margin": 0.05,
    "seeds": 2,
}


def planned(folder: Path, **content: Any) -> plan.Plan:
    return plan.make(studies.parse({"name": "own", "common": TINY, **NORM} | content), folder)


def end(made: plan.Plan, seeds: int) -> None:
    """Runs of a plan as they would be found once they have ended."""
    for job in made.jobs():
        if job.seed < seeds:
            place = made.folder / job.folder
            run(place, job.arm, job.seed, 2.0)
            (place / "config.yaml").unlink()


def told(folder: Path) -> dict[str, Any]:
    return specification.read(folder)


AMENDED = {
    "expected": ({"expected": {"norm=rms": "worse"}}, "expected.norm=rms from better to worse", 1),
    "sd": ({"sd": 0.5}, "sd from 0.0102 to 0.5", 1),
    "question": ({"question": "Is it better?"}, "question from nothing to Is it better?", 1),
    "margin": ({"margin": 0.5}, "margin from 0.05 to 0.5", 2),
    "seeds": ({"seeds": 3}, "seeds from 0, 1 to 0, 1, 2", 2),
    "baseline": (
        {"factors": {"norm": ["norm=rms", "norm=layer"]}, "expected": {}},
        "the order of factors.norm from norm=layer, norm=rms to norm=rms, norm=layer",
        2,
    ),
}


@pytest.mark.parametrize("what", AMENDED)
def test_an_amendment_is_kept_with_what_it_changed_and_after_how_many_runs(
    what: str, tmp_path: Path
) -> None:
    changed, said, looks = AMENDED[what]
    first, second = planned(tmp_path), planned(tmp_path, **changed)
    assert specification.record(first) == []
    end(first, seeds=1)
    assert [
        line
        for line in specification.foreseen(second, told(tmp_path))
        if said in line and "after 2 of 4 runs" in line
    ]
    specification.record(second)
    specification.record(second)
    content = told(tmp_path)
    assert len(content["amendments"]) == 1
    assert content["hash"] == second.study.hash != first.study.hash
    assert len(content["looks"]) == looks, "only what decides runs or test is a look at them"
    assert content["written"]["ended"] == 0
    (line,) = specification.remarks(content)
    assert line.startswith("Amended after 2 of 4 runs")
    assert said in line


def test_every_report_says_that_it_was_amended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specification.record(planned(tmp_path))
    end(planned(tmp_path), seeds=2)
    specification.record(planned(tmp_path, sd=0.5))
    report.show(tmp_path)
    files = [
        (tmp_path / name).read_text(encoding="utf-8")
        for name in ("report.md", "report.html", "table.tex")
    ]
    for text in (capsys.readouterr().out, *files):
        assert "Amended after 4 of 4 runs" in text
        assert "sd from 0.0102 to 0.5" in " ".join(text.split())


def test_an_expectation_that_was_changed_is_held_against_what_was_found_as_such(
    tmp_path: Path,
) -> None:
    specification.record(planned(tmp_path))
    end(planned(tmp_path), seeds=2)
    specification.record(planned(tmp_path, expected={"norm=rms": "worse"}))
    lines = wording.remarks(found := results.load(tmp_path), judging.judged(found)[0])
    assert any(
        "where worse was expected by the study (amended after 4 of 4 runs)" in line
        for line in lines
    )


def test_a_specification_that_is_written_after_the_runs_says_so(tmp_path: Path) -> None:
    specification.record(planned(tmp_path))
    end(planned(tmp_path), seeds=2)
    (tmp_path / "study.json").unlink()
    specification.record(planned(tmp_path))
    assert "written after 4 of 4 runs had ended" in specification.remarks(told(tmp_path))[0]


def test_a_change_by_hand_does_not_fit_the_hash(tmp_path: Path) -> None:
    specification.record(planned(tmp_path))
    content = told(tmp_path)
    assert specification.remarks(content) == []
    content["study"]["expected"]["norm=rms"] = "worse"
    assert "changed by hand" in specification.remarks(content)[0]


def test_what_changes_before_any_run_has_ended_is_no_second_look(tmp_path: Path) -> None:
    specification.record(planned(tmp_path))
    assert specification.record(planned(tmp_path, seeds=5)) == []
    assert [look["seeds"] for look in told(tmp_path)["looks"]] == [[0, 1, 2, 3, 4]]
    assert "Amended after 0 of 4 runs" in specification.remarks(told(tmp_path))[0]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"name": "other"}, "holds study 'own', and 'other' is another"),
        (
            {"factors": {"ffn": ["ffn=relu", "ffn=gelu"]}, "expected": {}},
            "holds another study of the name 'own'",
        ),
    ],
)
def test_another_study_in_the_same_folder_is_refused_by_name(
    other: dict[str, Any], said: str, tmp_path: Path
) -> None:
    specification.record(planned(tmp_path))
    before = (tmp_path / "study.json").read_bytes()
    with pytest.raises(ZooError, match=said):
        scheduler.prepare(planned(tmp_path, **other))
    assert (tmp_path / "study.json").read_bytes() == before


def test_a_damaged_specification_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"study": {"na', encoding="utf-8")
    with pytest.raises(ZooError, match="is damaged"):
        scheduler.prepare(planned(tmp_path))


def test_a_study_of_the_first_hash_keeps_its_folder_and_is_amended_like_any_other(
    tmp_path: Path,
) -> None:
    """As version 1 wrote it: its hash is the key of today, its arms have no folders, its looks
    no times.
    """
    made = planned(tmp_path)
    content = made.as_json() | {
        "hash": made.study.key,
        "looks": [{"hash": made.study.key, "seeds": [0, 1]}],
    }
    del content["version"]
    for arm in content["arms"]:
        del arm["folder"]
    (tmp_path / "study.json").write_text(json.dumps(content), encoding="utf-8")
    end(made, seeds=2)
    assert specification.remarks(told(tmp_path)) == []
    assert len(results.load(tmp_path).runs) == 4
    assert specification.record(made) == []
    assert "amendments" not in told(tmp_path)
    specification.record(planned(tmp_path, sd=0.1))
    assert "Amended after 4 of 4 runs" in specification.remarks(told(tmp_path))[0]
    assert len(told(tmp_path)["looks"]) == 1


# ── the source of the runs ──


def made_of(
    folder: Path, arm: str, seeds: range, digest: str, module: str = "mine.norms", **more: Any
) -> None:
    """Say of runs of what source they are."""
    for seed in seeds:
        path = folder / arm / f"seed_{seed}" / "summary.json"
        summary = json.loads(path.read_text(encoding="utf-8"))
        files = (
            {"zoo.training.module": "0" * 64, module: digest}
            if digest
            else {"zoo.training.module": "0" * 64}
        )
        summary["sources"] = {"components": {f"norm={arm}": module}, "files": files}
        path.write_text(json.dumps(summary | more), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two arms that are worse, of which one uses a module of somebody's own."""
    place = study(tmp_path / "s", {"mine": 0.3, "other": 0.3})
    made_of(place, "base", range(SEEDS), "")
    made_of(place, "other", range(SEEDS), "")
    made_of(place, "mine", range(SEEDS), "a" * 64)
    return place


def test_where_all_is_of_one_source_nothing_is_said(folder: Path) -> None:
    assert verdicts(folder) == {"mine": "worse", "other": "worse"}
    assert not any("source" in line for line in report.write(folder)[2])


@pytest.mark.parametrize("module", ["mine.norms", "zoo.training.module"])
def test_a_source_that_changed_between_seeds_is_named_and_its_arm_not_judged(
    folder: Path, module: str
) -> None:
    made_of(folder, "mine", range(4, SEEDS), "b" * 64, module)
    assert verdicts(folder) == {"mine": "withheld", "other": "worse"}
    _, compared, lines = report.write(folder)
    (line,) = [line for line in lines if "source" in line]
    assert "mine seed 4, mine seed 5 from the other" in line
    assert f"accept={module}" in line
    page = (folder / "report.md").read_text(encoding="utf-8")
    assert "mine against base is not judged" in page
    assert "mine is worse" not in page
    assert compared is not None
    assert compared["mine"].verdict == "withheld"


def test_a_baseline_of_two_sources_judges_nobody(folder: Path) -> None:
    made_of(folder, "base", range(1), "b" * 64, "zoo.training.module")
    assert verdicts(folder) == {"mine": "withheld", "other": "withheld"}


def test_a_run_that_went_on_with_other_source_is_of_both(folder: Path) -> None:
    made_of(folder, "mine", range(1), "a" * 64, earlier_sources=[{"mine.norms": "b" * 64}])
    assert verdicts(folder)["mine"] == "withheld"


def test_a_difference_is_accepted_by_name_until_there_is_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_of(folder, "mine", range(4, SEEDS), "b" * 64)
    monkeypatch.setattr(sys, "argv", ["ablations.report", str(folder), "accept=mine.norm"])
    with pytest.raises(SystemExit, match=r"did you mean 'mine\.norms'"):
        command.main()
    monkeypatch.setattr(sys, "argv", ["ablations.report", str(folder), "accept=mine.norms"])
    command.main()
    said = " ".join(capsys.readouterr().out.split())
    assert "mine is worse than base" in said
    assert "mine seed 4, mine seed 5 from the other 4 runs that used it: accepted (" in said
    made_of(folder, "mine", range(5, SEEDS), "c" * 64)
    assert verdicts(folder)["mine"] == "withheld"


def test_runs_that_did_not_record_their_source_beside_those_that_did_are_counted(
    folder: Path,
) -> None:
    path = folder / "base" / "seed_0" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sources": None}), encoding="utf-8")
    assert any(
        "1 of 18 runs have not recorded their source code" in line
        for line in report.write(folder)[2]
    )
    assert verdicts(folder)["mine"] == "worse"


def test_a_fingerprint_follows_what_a_component_imports_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_registry: None
) -> None:
    package = tmp_path / "mypack"
    (package / "inner").mkdir(parents=True)
    code = "from zoo.registry import register\nfrom .inner import deep\n"
    code += "import mypack.helper\nimport torch\n@register('norm', 'mypack')\n"
    code += "class Norm(torch.nn.Module):\n    def __init__(self, dim):\n        pass\n"
    files = {
        "__init__": "",
        "norms": code,
        "helper": "SCALE = 1\n",
        "inner/__init__": "",
        "inner/deep": "import json\n",
        "unused": "",
    }
    for name, text in files.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("mypack.norms")
    composed = config.compose([*TINY, "norm=layer"])
    composed["attn"] |= {"qk_norm": {"name": "mypack"}}

    def files_now() -> dict[str, str]:
        for cached in (
            provenance._digest,
            provenance._imports,
            provenance._file,
            provenance.closure,
            provenance._package,
        ):
            cached.cache_clear()  # as in another process
        return provenance.sources(composed)["files"]

    before = files_now()
    assert {name for name in before if name.startswith("mypack")} == {
        "mypack",
        "mypack.norms",
        "mypack.helper",
        "mypack.inner",
        "mypack.inner.deep",
    }
    assert {
        "zoo.training.runner",
        "zoo.training.module",
        "zoo.components.norm",
        "zoo.optim",
        "zoo.objectives",
        "zoo.optim.schedules",
    } <= before.keys()
    assert not {"zoo.generate", "zoo.components.recurrent", "zoo.train"} & before.keys(), (
        "what the run does not use"
    )
    (package / "helper.py").write_text("SCALE = 2\n", encoding="utf-8")
    after = files_now()
    assert {name for name in after if after[name] != before[name]} == {"mypack.helper"}


def test_a_checkout_may_hold_a_file_whose_name_is_not_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    package = tmp_path / "checkout_of_any_names"
    package.mkdir()
    for name in ("__init__.py", "\udcff.txt"):
        (package / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert provenance._package(package.name, package.name, (package.name,))["changed"] == [
        package.name
    ]


def test_a_package_in_an_ignored_environment_has_no_commit_of_the_project_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / ".venv" / "installed"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / ".gitignore").write_text(".venv\n", encoding="utf-8")
    for line in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm first"):
        subprocess.run(["git", "-C", str(tmp_path), *line.split()], check=True)
    monkeypatch.setattr(provenance, "_file", lambda module: package / "__init__.py")
    found = provenance._package.__wrapped__("installed", "installed", ("installed",))
    assert found == {"version": None, "commit": None, "changed": []}
