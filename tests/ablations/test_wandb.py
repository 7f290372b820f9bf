"""A study in Weights & Biases, as its offline files tell it and as an agent would run it.
Nothing here is sent.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ablations import plan, scheduler, wandb_sweep
from ablations import study as studies
from ablations.report import wandb_report
from tests.helpers.wandb_files import read_wandb, wandb_records
from zoo import config
from zoo.tracking.wandb_logger import begin

Study = Callable[..., str]
Ablate = Callable[..., Any]
GROUP = """norm=a'b" c_12"""
TUNE = {"grid": {"optim.lr": [1e-3, 3e-3]}, "seeds": [7]}


def offline(folder: Path) -> Path:
    """The file of an offline run, which W&B's process goes on writing for a moment after the
    run's end.
    """
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    for _ in range(100):
        if written(file, "exit"):
            break
        time.sleep(0.1)
    return file


def written(file: Path, field: str) -> list[Any]:
    return [getattr(record, field) for record in wandb_records(file) if record.HasField(field)]


def planned(word: str, *words: str) -> plan.Plan:
    loaded = studies.load(word.removeprefix("study="))
    return plan.make(replace(loaded, common=studies.merged(loaded.common, words)))


def test_a_study_is_a_group_of_its_arms_and_ends_with_its_report(
    study: Study,
    ablate: Ablate,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = [study(seeds=1), "hydra.sweep.dir=here", "logger=wandb", "logger.tags=[mine]"]
    assert ablate(*line) == 0
    for arm in ("norm=layer", "norm=rms"):
        run = written(offline(Path("here") / arm / "seed_0"), "run")[0]
        assert (run.run_group, run.job_type, run.display_name) == ("here", arm, f"{arm}/seed_0")
        assert set(run.tags) == {"mine", "own", "judged"}
    file = offline(Path("here"))
    run, artifacts = (
        written(file, "run")[0],
        {made.type: made for made in written(file, "artifact")},
    )
    assert (run.run_group, run.job_type, set(run.tags)) == ("here", "report", {"mine", "own"})
    assert (artifacts["report"].name, artifacts["run_table"].finalize) == ("here", True)
    kept = {entry.path for entry in artifacts["report"].manifest.contents}
    assert {"report.html", "report.md", "comparison.csv", "runs.csv", "study.json"} <= kept
    _, history, code = read_wandb(file)
    assert code == 0
    assert {"comparison/path", "runs/path", "report/path"} <= {
        key for row in history for key in row
    }
    table = json.loads(
        next(file.parent.glob("files/media/table/runs_*.json")).read_text(encoding="utf-8")
    )
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    summary = json.loads(Path("here/norm=rms/seed_0/summary.json").read_text(encoding="utf-8"))
    assert [(row["arm"], row["seed"]) for row in rows] == [("norm=layer", 0), ("norm=rms", 0)]
    assert rows[1]["value"] == pytest.approx(summary["metrics"]["val/loss"])
    assert "logger." not in rows[1]["command"]
    assert "wandb sync here/wandb/latest-run" in capsys.readouterr().out

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the network is gone")

    monkeypatch.setattr("zoo.tracking.wandb_logger.begin", fail)
    assert ablate(*line) == 0, "the study has ended well without it"
    said = " ".join(capsys.readouterr().out.split())
    assert said.endswith("did not take the report (OSError: the network is gone); it is in here")


def test_what_tunes_is_told_from_what_counts(study: Study) -> None:
    made = planned(study(seeds=1, tune=TUNE), "logger=wandb", "logger.job_type=mine")
    for job, tag in ((made.trials()[0], "tuning"), (made.jobs()[0], "judged")):
        logger = job.config["logger"]
        assert logger["tags"] == ["own", tag]
        assert (logger["group"], logger["label"], logger["job_type"]) == (
            made.folder.name,
            job.folder,
            "mine",
        )
        assert (
            config.compose([word for word in job.words if word != "resume=auto"])["logger"]
            == logger
        ), "as its words say"


def test_online_a_page_and_a_workspace_are_saved(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = planned(study(seeds=1), "logger=wandb")
    made.folder.mkdir(parents=True)
    for name in ("comparison.csv", "runs.csv", "report.md", "report.html"):
        (made.folder / name).write_text("arm,mean\nbase,1.5\n", encoding="utf-8")
    saved = []

    def save(self: Any) -> Any:
        saved.append((type(self).__name__, self.project))
        return SimpleNamespace(url="https://there")

    monkeypatch.setattr("zoo.tracking.wandb_logger.reachable_mode", lambda asked: "online")
    monkeypatch.setattr(
        "zoo.tracking.wandb_logger.begin",
        lambda *told, mode, **about: begin(*told, mode="offline", **about),
    )
    monkeypatch.setattr("wandb_workspaces.reports.v2.Report.save", save)
    monkeypatch.setattr("wandb_workspaces.workspaces.Workspace.save", save)
    assert wandb_report.publish(made) == ["In Weights & Biases: https://there"] * 2
    assert saved == [("Report", "zoo"), ("Workspace", "zoo")]
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    assert "pip install 'transformer-zoo[report]'" in wandb_report.publish(made)[0]


def test_the_page_and_the_workspace_show_the_arms_of_the_runs_that_count() -> None:
    place = SimpleNamespace(entity=None, project="zoo")
    metric = "val/bits_per_byte"
    page = wandb_report.page(GROUP, metric, "- rms is **better**", place)._to_model()
    told = json.loads(page.spec.model_dump_json(by_alias=True, exclude_none=True))
    assert page.project.name == "zoo"
    text, grid, table = (
        block for block in told["blocks"] if block["type"] in ("markdown-block", "panel-grid")
    )
    assert text["content"] == "- rms is **better**"
    panels = grid["metadata"]["panelBankSectionConfig"]["panels"]
    assert [panel["config"]["metrics"] for panel in panels] == [
        ["val/loss"],
        [metric],
        [f"summary_metrics.{metric}"],
        ["train/tokens_per_second"],
    ]
    assert {(panel["config"]["groupBy"], panel["config"]["groupAgg"]) for panel in panels} == {
        ("jobType", "mean")
    }
    (runs,) = grid["metadata"]["runSets"]
    filters = [(one["key"]["name"], one["value"]) for one in runs["filters"]["filters"]]
    assert filters == [("group", GROUP), ("tags", ["judged"])]
    (report,) = table["metadata"]["runSets"]
    assert [one["value"] for one in report["filters"]["filters"]] == [GROUP, "report"]
    assert '"val": "comparison"' in json.dumps(table)

    view = wandb_report.workspace(GROUP, metric, place)._to_model()
    section = json.loads(view.spec.model_dump_json(by_alias=True, exclude_none=True))["section"]
    (shown,), (beside,) = section["panelBankConfig"]["sections"], section["runSets"]
    assert [panel["config"] for panel in shown["panels"]] == [panel["config"] for panel in panels]
    assert beside["filters"] == runs["filters"]
    assert [key["name"] for key in beside["grouping"]] == ["jobType"]


def test_the_readme_names_the_panels() -> None:
    told = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert [
        panel.title for panel in wandb_report._panels("val/loss") if f"`{panel.title}`" not in told
    ] == []


def test_a_column_is_of_numbers_or_of_words(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("arm,p,note\n1,,2\nb,0.5,\n", encoding="utf-8")
    assert wandb_report.table(tmp_path / "x.csv").data == [["1", None, 2.0], ["b", 0.5, None]]


def commands(file: Path) -> list[list[str]]:
    """What an agent starts for each point of the grid, expanded by wandb's own code."""
    from wandb.sdk.launch.sweeps import utils

    sweep = utils.load_sweep_config(str(file))
    assert sweep is not None
    assert sweep["method"] == "grid"
    known: dict[str, list[str]] = {
        "env": ["env"],
        "interpreter": ["python"],
        "program": [sweep["program"]],
    }
    named = {name: told["values"] for name, told in sweep["parameters"].items()}
    found = []
    for point in itertools.product(*named.values()):
        told = {"args": {name: {"value": value} for name, value in zip(named, point, strict=True)}}
        known |= utils.create_sweep_command_args(told)
        line = [
            known[word[2:-1]] if word.startswith("${") else [word]
            for word in utils.create_sweep_command(sweep["command"])
        ]
        found.append([word for words in line for word in words])
    return found


def test_agents_run_precisely_the_studys_runs(
    study: Study, ablate: Ablate, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"name": "one, shared", "attn": "mqa", "arch.pattern": [{"attn": {"window": 8}}, {}]}
    word, taken = (
        study(factors={"attn": ["attn=mha", shared], "norm": ["norm=layer", "norm=rms"]}),
        [],
    )
    monkeypatch.setattr(scheduler, "execute", lambda one, *_: taken.extend(one.jobs()) or 0)
    assert ablate(word, "logger=wandb", "optim.lr=0.002", "wandb_sweep=sweep.yaml") == 0
    assert not Path("studies").exists()
    for line in commands(Path("sweep.yaml")):
        assert line[:4] == ["env", "python", "-m", "ablations.run"]
        assert ablate(*line[4:]) == 0
    whole = planned(word, "logger=wandb", "optim.lr=0.002")
    assert ("attn=one, shared", "attn=one,_shared/seed_0") in {
        (job.arm, job.folder) for job in taken
    }
    assert sorted(taken, key=lambda job: job.folder) == sorted(
        whole.jobs(), key=lambda job: job.folder
    )
    told = json.loads((whole.folder / "study.json").read_text(encoding="utf-8"))
    assert (told["hash"], len(told["looks"])) == (whole.study.hash, 1), (
        "the study is that of its own line"
    )


def test_the_command_of_a_sweeps_file_can_be_pasted(study: Study) -> None:
    wandb_sweep.write(planned(study(), "logger=wandb"), [], Path("my sweep.yaml"))
    assert "wandb sweep 'my sweep.yaml'" in Path("my sweep.yaml").read_text(encoding="utf-8")


def test_an_agents_run_has_the_name_that_it_waits_for(
    study: Study, ablate: Ablate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    monkeypatch.setenv("WANDB_RUN_ID", "agent1")
    assert (
        ablate(study(seeds=2), "logger=wandb", "hydra.sweep.dir=here", "arm=norm=rms", "seed=1")
        == 0
    )
    assert written(offline(Path("here/norm=rms/seed_1")), "run")[0].run_id == "agent1"
    told = json.loads(Path("here/norm=rms/seed_1/summary.json").read_text(encoding="utf-8"))
    assert told["id"] == "agent1", "also when it is gone on with"
    assert len(list(Path("here").glob("*/seed_*/config.yaml"))) == 1
    assert not Path("here/report.html").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["wandb_sweep=x.yaml"], "add logger=wandb"),
        (
            ["logger=wandb", "wandb_sweep=x.yaml", f"tune={json.dumps(TUNE)}"],
            "this study tunes first",
        ),
        (["arm=norm=rsm", "seed=0"], "no such arm: did you mean 'norm=rms'?"),
        (["arm=norm=rms", "seed=9"], "this study's seeds are [0, 1]"),
        (["arm=norm=rms"], "this study's seeds are [0, 1]"),
    ],
)
def test_a_mistake_is_a_sentence(study: Study, ablate: Ablate, given: list[str], said: str) -> None:
    assert said in ablate(study(), *given)
    assert not Path("x.yaml").exists()
