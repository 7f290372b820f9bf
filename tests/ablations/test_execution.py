"""The runs of a study: each once, whatever is stopped, fails, or is started twice."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablations import plan, run
from ablations import study as studies
from ablations.plan import display, forecast, jobs
from tests.helpers.commands import Process, start
from zoo import registry
from zoo.config import CONF, discover
from zoo.data import cache

Study = Callable[..., str]
Ablate = Callable[..., Any]


def summaries(folder: str | Path = "studies") -> dict[str, dict[str, Any]]:
    found = sorted(Path(folder).glob("**/summary.json"))
    return {
        "/".join(path.parts[-3:-1]): json.loads(path.read_text(encoding="utf-8")) for path in found
    }


def in_process(*arguments: str, fresh: bool = False) -> Process:
    line = [sys.executable, "-m", "ablations.run", *arguments]
    return start(line, fresh, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_same_command_again_runs_nothing(
    study: Study, ablate: Ablate, capsys: pytest.CaptureFixture[str]
) -> None:
    word = study()
    assert ablate(word) == 0
    first, out = summaries(), capsys.readouterr().out
    assert set(first) == {
        f"{arm}/seed_{seed}" for arm in ("norm=layer", "norm=rms") for seed in (0, 1)
    }
    assert {run["status"] for run in first.values()} == {"finished"}
    assert "exploratory" in out
    assert "4/4 runs" in out
    told = json.loads(next(Path("studies").glob("own_*/study.json")).read_text(encoding="utf-8"))
    assert told["study"]["seeds"] == [0, 1]
    assert [arm["name"] for arm in told["arms"]] == ["norm=layer", "norm=rms"]
    assert next(Path("studies").iterdir()).name == f"own_{told['looks'][0]['hash'][:8]}"
    assert ablate(word) == 0
    assert summaries() == first
    assert "4 of 4 runs are done already" in capsys.readouterr().out


def test_a_plan_writes_nothing(
    study: Study, ablate: Ablate, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(Path().iterdir())
    assert (
        ablate(
            study(factors={"attn": ["attn=mha", "attn=mqa"]}),
            "plan_only=true",
            "seeds=6",
            "ffn.bias=true",
        )
        == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    for said in (
        "2 arms × 6 seeds",
        "Power to detect a difference as large as the margin (0.05): ",
        "ffn.hidden",
        "specification",
        "baseline",
        "FLOPs per token",
        "Validated on",
        "too few to generalise from (fewer than 30)",
    ):
        assert said in out
    assert {path.name for path in set(Path().iterdir()) - before} == {"own.yaml"}


@pytest.mark.parametrize(("files", "few"), [(1, True), (40, True), (200, False)])
def test_a_plan_counts_the_documents_that_its_runs_will_be_judged_on(
    tmp_path: Path, files: int, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(files):
        (tmp_path / f"{number}.txt").write_text(
            f"A text of its own, {number}.\n" * 20, encoding="utf-8"
        )
    discover()
    config: dict[str, Any] = {"data": {"name": "text", "path": str(tmp_path), "val_fraction": 0.3}}
    source = registry.build("data", config["data"])
    number = (
        cache.load(source, registry.build("tokenizer", {"name": "byte"}), tmp_path / "cache")
        .splits["val"]
        .documents
    )
    said = display.validation_sentence(config)
    assert f"Validated on {number} document" in said
    assert ("too few" in said) == few == (number < 30)
    monkeypatch.setattr(forecast, "LARGEST_READ", 100)
    assert "not counted before the first run" in display.validation_sentence(config)


def test_what_fails_or_diverges_is_told_and_the_rest_goes_on(
    study: Study, ablate: Ablate, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {
        "fails": ["pos=rope", "loader.eval_length=1000000"],
        "diverges": ["optim.lr=1e9", "trainer.clip=null"],
        "good": "norm=rms",
    }
    word = study(design="arms", factors={}, arms=arms, seeds=1, match="none")
    assert ablate(word, "hydra.sweep.dir=here") == 1
    told = {place: run["status"] for place, run in summaries("here").items()}
    assert told == {
        "fails/seed_0": "failed",
        "diverges/seed_0": "diverged",
        "good/seed_0": "finished",
    }
    out = capsys.readouterr().out
    assert "1 run failed" in out
    assert "1 diverged" in out
    before = summaries("here")
    assert ablate(word, "hydra.sweep.dir=here") == 1
    after = summaries("here")
    assert after["diverges/seed_0"] == before["diverges/seed_0"], "an outcome is not tried again"
    assert after["fails/seed_0"]["status"] == "failed"


def test_a_broken_arm_is_refused_at_its_first_step_before_any_run(
    study: Study, ablate: Ablate, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {"good": "norm=rms", "broken": ["pos=rope", "loader.eval_length=1000000"]}
    word = study(design="arms", factors={}, arms=arms, seeds=1, match="none")
    said = ablate(
        word, "hydra.sweep.dir='my runs'", "trainer.max_steps=101", "trainer.watch_every=50"
    )
    assert "arm broken fails at its first step: loader.eval_length=1000000 is longer than" in said
    assert "no run was started" in said
    assert "one step of each arm is tried first" in capsys.readouterr().out
    assert {
        place: run["steps"]
        for place, run in summaries("my runs").items()
        if run["status"] == "finished"
    } == {"good/first_step": 1}
    assert not list(Path("my runs").glob("*/seed_*"))


def test_an_arm_that_has_come_far_is_not_tried_again(
    study: Study, ablate: Ablate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "SHORT", 4)
    word = study(seeds=1)
    assert ablate(word, "hydra.sweep.dir=here") == 0
    assert {place: run["steps"] for place, run in summaries("here").items()} == {
        f"{arm}/{run}": steps
        for arm in ("norm=layer", "norm=rms")
        for run, steps in (("first_step", 1), ("seed_0", 8))
    }
    assert not list(Path("here").glob("*/first_step/checkpoints"))
    loaded = studies.load(word.removeprefix("study="), {"seeds": 2})
    assert plan.make(loaded, Path("here")).first_steps() == []
    assert len(plan.make(loaded, Path("elsewhere")).first_steps()) == 2


def test_the_time_is_of_the_runs_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = [
        "arch.dim=16",
        "arch.layers=1",
        "arch.heads=2",
        "arch.length=16",
        "trainer.max_steps=25",
        "trainer.eval_every=10",
    ]
    factors = {"norm": ["norm=layer", "norm=rms"]}
    made = plan.make(
        studies.parse(
            {"name": "own", "common": tiny, "factors": factors, "seeds": 2, "match": "none"}
        ),
        tmp_path,
    )
    monkeypatch.setattr(forecast, "validation", lambda _: forecast.Validation(9, 900))
    monkeypatch.setattr(forecast, "_flops_per_second", lambda _: 1e6)
    flops = [
        cost["training_flops"] + 3 * 900 * cost["flops_per_token"] / 3 for cost in made.costs
    ]  # 3 evaluations, forward
    assert plan.time_left(made)[:2] == (4, pytest.approx(2 * sum(flops) / 1e6 + 4))
    for number, (job, status) in enumerate(
        zip(made.jobs(), ("finished", "finished", "diverged", "failed"), strict=True)
    ):
        (tmp_path / job.folder).mkdir(parents=True)
        told = {
            "status": status,
            "seconds": 1.0,
            "wall_seconds": 3.0 * flops[number % 2] / flops[1],
        }
        (tmp_path / job.folder / "summary.json").write_text(json.dumps(told), encoding="utf-8")
    assert plan.time_left(made) == (1, pytest.approx(3.0), "2 finished runs")


def test_a_sweep_without_a_study_shows_its_runs_and_none_begins(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["ablations.run", *words, "norm=layer,rms", "seed=0,1", "plan_only=true"]
    )
    run.main()
    assert "4 runs, not started." in " ".join(capsys.readouterr().out.split())
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (["seeds=3"], "seeds=3 is an option of a study: add study=NAME"),
        (["plan_only=perhaps"], "plan_only must be true or false"),
        (["hydra.sweep.dir=sweep"], "sweep/0 already holds a run"),
        (["hydra.sweep.dir=planned"], "planned holds a study"),
    ],
)
def test_a_sweep_that_is_refused_shows_no_report(
    told: list[str], said: str, words: list[str], ablate: Ablate
) -> None:
    Path("sweep/0").mkdir(parents=True)
    Path("sweep/0/config.yaml").touch()
    Path("planned").mkdir()
    Path("planned/study.json").touch()
    assert said in ablate(*words, "norm=layer,rms", *told)
    assert not list(Path().glob("*/report.html"))


def test_a_study_that_diverges_has_not_failed(study: Study, ablate: Ablate) -> None:
    word = study(
        factors={"rate": ["", {"optim.lr": 1e9, "trainer.clip": None}]}, seeds=1, match="none"
    )
    assert ablate(word) == 0


def test_killed_study_resumes(study: Study, ablate: Ablate) -> None:
    trainer = ["trainer.max_steps=400", "trainer.checkpoint_every=20", "trainer.eval_every=400"]
    words = [study(seeds=1), "hydra.sweep.dir=here", *trainer]
    process = in_process(*words)
    last = Path("here/norm=rms/seed_0/checkpoints/last.ckpt")
    for _ in range(6000):
        if last.exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert last.exists(), process.stdout and process.stdout.read()
    first = summaries("here")
    assert first["norm=layer/seed_0"]["status"] == "finished"
    assert first["norm=rms/seed_0"]["status"] == "running"
    assert ablate(*words) == 0
    second = summaries("here")
    assert second["norm=layer/seed_0"] == first["norm=layer/seed_0"], "what had finished is used"
    assert second["norm=rms/seed_0"]["status"] == "finished"
    assert second["norm=rms/seed_0"]["id"] == first["norm=rms/seed_0"]["id"], (
        "what had not is gone on with"
    )


def test_two_processes_share_a_study(study: Study) -> None:
    words = [study(), "hydra.sweep.dir=here", "trainer.max_steps=100", "trainer.eval_every=100"]
    processes = [in_process(*words), in_process(*words)]
    said = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    found = summaries("here")
    assert [run["status"] for run in found.values()] == ["finished"] * 4
    for place in found:
        assert (Path("here") / place / "log.txt").read_text(encoding="utf-8").count(
            "step 100/100"
        ) == 1, "run once"


def test_ctrl_c_says_how_to_continue(study: Study) -> None:
    process = in_process(
        study(seeds=1), "hydra.sweep.dir=here", "trainer.max_steps=5000", fresh=True
    )
    first = Path("here/norm=layer/seed_0/metrics.csv")
    for _ in range(6000):
        if (
            first.exists() and first.read_text(encoding="utf-8").count("\n") > 2
        ) or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=100)[0]
    assert process.returncode == 130, said
    assert "Stopped. Run the same command to continue." in said
    assert {run["status"] for place, run in summaries("here").items() if "/seed_" in place} == {
        "interrupted"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [["joblib", "hydra.launcher.n_jobs=2"], ["submitit_local", "hydra.sweeper.at_once=2"]],
)
def test_any_launcher_runs_a_study(launcher: list[str], study: Study) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{launcher[0].split('_')[0]}_launcher")
    process = in_process(
        study(), "hydra.sweep.dir=here", f"hydra/launcher={launcher[0]}", *launcher[1:]
    )
    said = process.communicate(timeout=250)[0]
    assert process.returncode == 0, said
    assert [run["status"] for run in summaries("here").values()] == ["finished"] * 4


def test_a_metric_that_no_run_has_is_told(study: Study, ablate: Ablate) -> None:
    for metric, said in (
        ("val/los", "did you mean 'val/loss'"),
        ("train/nonsense", "no run measures it"),
        ("train/los", "did you mean 'train/loss'"),
        ("train/lr", "neither more nor less of it is better"),
    ):
        told = ablate(study(seeds=1, metric=metric))
        assert f"metric={metric}: " in told
        assert said in told
        assert not Path("studies").exists(), "before the first run"


def test_tuning_comes_first_and_is_judged_on_other_seeds(study: Study, ablate: Ablate) -> None:
    word = study(seeds=1, tune={"grid": {"optim.lr": [1e-9, 1e-2]}, "seeds": [7]})
    assert ablate(word, "hydra.sweep.dir=here") == 0
    told = json.loads(Path("here/study.json").read_text(encoding="utf-8"))["tuned"]
    assert {arm: search["point"]["optim.lr"] for arm, search in told.items()} == {
        "norm=layer": 0.01,
        "norm=rms": 0.01,
    }
    assert told["norm=layer"]["at_the_edge"] == ["optim.lr"]
    runs = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(Path("here").glob("*/seed_0/summary.json"))
    ]
    assert [word for run in runs for word in run["overrides"] if word.startswith("optim.lr")] == [
        "optim.lr=0.01"
    ] * 2
    assert len(list(Path("here").glob("*/tune/*/seed_7/summary.json"))) == 4
    before = summaries("here")
    assert ablate(word, "hydra.sweep.dir=here") == 0
    assert summaries("here") == before


def test_other_code_is_said_and_another_configuration_refused(
    study: Study, ablate: Ablate, capsys: pytest.CaptureFixture[str]
) -> None:
    word = study(seeds=1)
    assert ablate(word, "hydra.sweep.dir=here") == 0
    place = Path("here/norm=layer/seed_0/summary.json")
    told = json.loads(place.read_text(encoding="utf-8"))
    own = told["data"]["fingerprint"]
    told["git_sha"], told["data"]["fingerprint"], told["versions"]["torch"] = (
        "older",
        "elsewhere",
        "1.0",
    )
    place.write_text(json.dumps(told), encoding="utf-8")
    capsys.readouterr()
    assert "the runs differ in the data's fingerprint" in ablate(word, "hydra.sweep.dir=here"), (
        "which no report compares"
    )
    out = " ".join(capsys.readouterr().out.split())
    for said in (
        "another version of the code (older",
        "other packages (torch 1.0)",
        "other data (fingerprint elsewhere",
    ):
        assert said in out
    told["data"]["fingerprint"] = own
    place.write_text(json.dumps(told), encoding="utf-8")
    assert "holds a run of another configuration (different: arch.dim)" in ablate(
        word, "hydra.sweep.dir=here", "arch.dim=16"
    )
    assert ablate(word, "hydra.sweep.dir=here", "seeds=2") == 0
    assert "look 2 at this folder" in capsys.readouterr().out
    looks = json.loads(Path("here/study.json").read_text(encoding="utf-8"))["looks"]
    assert [look["seeds"] for look in looks] == [[0], [0, 1]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["study=smoek"], "no study 'smoek': did you mean 'smoke'?"),
        (["study=nowhere.yaml"], "no study 'nowhere.yaml': No such file"),
        (["study=smoke", "seed=0"], "seed=0: a study has several seeds, as in seeds=5"),
        (["study=smoke", "design=ladr"], "did you mean 'ladder'?"),
        (
            ["study=smoke", "arch.dmi=3"],
            "arm norm=layer: arch has no option 'dmi': did you mean 'dim'?",
        ),
        (["study=smoke", "plan_only=perhaps"], "plan_only must be true or false"),
        (["study=smoke", "--cfg", "job"], "plan_only=true shows"),
        (
            ["study=smoke", "norm=rms", "factors={n: [arch.layers=1, arch.layers=9]}"],
            "more than 1 % away",
        ),
    ],
)
def test_a_mistake_is_a_sentence(words: list[str], said: str, ablate: Ablate) -> None:
    assert said in ablate(*words)
    assert not Path("studies").exists()


def test_a_run_is_not_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo import train

    monkeypatch.setattr(sys, "argv", ["zoo.train", "study=smoke"])
    with pytest.raises(SystemExit) as ended:
        train.main()
    assert "python -m ablations.run study=smoke" in str(ended.value.code)


def test_help_names_each_study_with_its_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ablations.run", "--help"])
    run.main()
    said = capsys.readouterr().out
    shipped = [studies.load(path.stem) for path in (CONF / "study").glob("*.yaml")]
    assert len(shipped) >= 14
    for each in shipped:
        assert re.search(rf"^{each.name} +{re.escape(each.question)}$", said, re.MULTILINE)
