"""The command lines as a person types them, each in a process of its own; a fresh one of each,
the others forked.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from omegaconf import OmegaConf

from ablations import run as ablate
from tests.helpers.commands import bounded, start
from tests.helpers.runs import Train, equal, losses, summary, weights, when
from tests.helpers.wandb_files import read_wandb
from zoo import config, generate, train
from zoo.components import __main__ as components
from zoo.cost import __main__ as cost
from zoo.cost import gpus
from zoo.errors import ZooError
from zoo.launch import preflight
from zoo.tracking import run_folder

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Refused = Callable[..., str]


@pytest.fixture
def refused(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """What a command line says when it refuses, in this process; more than one line is a
    failure.
    """

    def refused(module: Any, *typed: str, tiny: bool = True) -> str:
        monkeypatch.setattr(sys, "argv", [module.__name__, *(words if tiny else []), *typed])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
        with pytest.raises(SystemExit) as ended:
            module.main()
        said = ended.value.code if isinstance(ended.value.code, str) else capsys.readouterr().err
        assert isinstance(ended.value.code, int) or "\n" not in said
        return said

    return refused


def test_train_shows_the_result_and_what_to_type_next(command: Command) -> None:
    done = command("norm=rms", "pos=rope", fresh=True)
    assert done.returncode == 0, done.stderr
    (folder,) = Path("runs").iterdir()
    told = summary(folder)
    for shown in (
        f"{told['metrics']['val/bits_per_byte']:.3f}",
        "unigram",
        "xz",
        str(folder),
        "python -m zoo.generate",
    ):
        assert shown in done.stdout
    written = command(
        f"ckpt={folder}",
        "prompt=3 times",
        "tokens=5",
        "temperature=0",
        module="zoo.generate",
        tiny=False,
        fresh=True,
    )
    assert written.returncode == 0, written.stderr
    assert written.stdout.startswith("3 times")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("norm=rsm", "did you mean 'rms'"),
        ("nrom=rms", "did you mean 'norm'"),
        ("norm.epss=1", "did you mean 'eps'"),
        ("norm.eps=abc", "norm.eps: Value 'abc'"),
        ("attn=gqa attn.kv_heads=3 arch.heads=4", "4 heads cannot share 3 KV heads"),
        ("pos=rope attn.head_dim=5", "must be even, not 5"),
        (
            "pos=learned arch.length=32 loader.length=64",
            "longer than the 32 positions of pos=learned",
        ),
        ("data.path=nowhere", "nowhere"),
        ("trainer.max_steps=0", "trainer.max_steps"),
        ("loader.batch_size=3 trainer.accumulate=2", "batch_size=3"),
        ("optim.lr=-1", "optim.lr must be at least 0, not -1.0"),
        ("ffn.hidden=-1", "ffn.hidden must be at least 1 or null, not -1"),
        ("trainer.clip=0", "trainer.clip must be above 0"),
        ("data.val_fraction=0", "data.val_fraction above 0"),
        ("hydra/launcher=joblib", "launches the jobs of a sweep: give -m beside it"),
        ("trainer.strategy=foo", "trainer.strategy=foo is none of auto, ddp, fsdp"),
        ("logger=wandb logger.project=a/b", "logger.project='a/b' is no name for W&B"),
        ("data.path=", "data.path is empty"),
        ("data.path=/dev/null", "data.path=/dev/null is neither a file nor a folder"),
        ("hydra.run.dir=/proc/nope", "/proc/nope (No such file or directory): choose another"),
        ("hydra.run.dir=/dev/null", "/dev/null (File exists)"),
        (f"hydra.run.dir={'a' * 300}", "File name too long"),
        ("hydra.run.dir=${x}", "hydra.run.dir: Interpolation key 'x' not found"),
        ("-m hydra.sweep.dir=/proc/nope", "/proc/nope (No such file or directory): choose another"),
        ("-m hydra.sweep.dir=${x}", "hydra.sweep.dir: Interpolation key 'x' not found"),
        ("-m norm=layer,rms,layer", "norm=layer is asked for twice: leave one out"),
        ("-m seed=0,0 norm=layer arch.dim=16", "error: seed=0 is asked for twice: leave one out"),
        ("-m norm.eps=1e-5,0.00001", "norm.eps=1e-05 is asked for twice: leave one out"),
        ("-m ffn.bias=false,0", "ffn.bias=0 are the same run: leave one out"),
        ("--config-dir /nope", "--config-dir /nope: there is no such folder"),
        ("--config-name foo", "--config-name foo: there is one configuration"),
        ("norm=rms --fcg job", "unknown flag --fcg: did you mean '--cfg'?"),
    ],
)
def test_a_mistake_is_met_with_one_plain_sentence(refused: Refused, wrong: str, said: str) -> None:
    assert said in refused(train, *wrong.split())


FLAGS = ["--run", "--multirun", "--cfg job", "--info all", "--shell-completion"]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(FLAGS, 2)))
def test_flags_that_ask_for_different_things_are_refused(
    refused: Refused, one: str, other: str
) -> None:
    said = refused(train, *f"{one} {other} norm=rms".split(), tiny=False)
    assert said == (
        f"error: {one.split()[0]} and {other.split()[0]} ask for different things: give one of them"
    )


def test_what_this_machine_cannot_run_is_refused_before_a_model_is_made(
    monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    def made(*_: Any) -> None:
        raise AssertionError("a model was made first")

    monkeypatch.setattr(preflight, "refuse_meaningless", made)
    monkeypatch.setattr(gpus, "no_gpu", lambda: True)
    assert "this machine has no GPU: choose trainer=cpu" in refused(
        train, "trainer.accelerator=gpu"
    )
    assert "this machine has no GPU" in refused(train, "-m", "trainer.accelerator=gpu", "seed=0,1")
    monkeypatch.setenv("WANDB_MODE", "onlin")
    assert "WANDB_MODE=onlin in the environment is none of online, offline" in refused(
        train, "logger=wandb"
    )
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        own = str(taken.getsockname()[1])
        for port, why in (
            (own, "Address already in use"),
            ("abc", "invalid literal"),
            ("99999", "0-65535"),
        ):
            monkeypatch.setenv("MASTER_PORT", port)
            said = refused(train, "trainer.devices=2")
            assert f"MASTER_PORT={port} in the environment cannot be used" in said
            assert why in said


def test_a_port_that_is_taken_meanwhile_is_a_sentence(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: Any, **__: Any) -> None:
        raise torch.distributed.DistNetworkError(
            "The server socket has failed to listen on any local network address."
        )

    monkeypatch.setattr(Trainer, "fit", taken)
    with pytest.raises(
        ZooError,
        match=r"the ranks cannot reach each other .*: unset MASTER_ADDR and",
    ):
        train("run")
    assert "cannot reach each other" in summary("run")["error"]


@pytest.mark.parametrize(
    ("module", "typed", "said"),
    [
        (ablate, "norm=rms --foo", "unknown flag --foo"),
        (components, "--jsn", "--jsn"),
        (cost, "--jsn", "--jsn"),
        (cost, "hydra.run.dir=x", "hydra.run.dir=x is about a run"),
        (cost, "norm=rms,layer", "lists several values"),
        (generate, "ckpt=", "which model?"),
        (generate, "ckpt=x prompt=a prompt=b", "prompt is given twice"),
    ],
)
def test_so_is_one_in_another_command(refused: Refused, module: Any, typed: str, said: str) -> None:
    assert said in refused(module, *typed.split(), tiny=False)


def test_a_prompt_is_taken_as_it_stands() -> None:
    asked = generate.parse(["ckpt=a?", "prompt=${oc.env:HOME} ???", "tokens=3", "top_k=null"])
    assert asked == generate.Request("a?", "${oc.env:HOME} ???", 3, 0.8, None, 0)


def test_a_flag_may_stand_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys,
        "argv",
        ["train", "norm=rms", "--cfg", "job", "arch.dim=64", "--config-dir", ".", "seed=3"],
    )
    train.main()
    shown = capsys.readouterr().out
    assert "name: rms" in shown
    assert "dim: 64" in shown
    assert "seed: 3" in shown


def test_a_refusal_stands_alone(command: Command) -> None:
    done = command("arch.vocab=100")
    assert done.returncode == 1
    assert done.stderr == "error: arch.vocab=100 is smaller than the tokenizer's 257\n"


def test_nobody_to_read_and_no_room_to_write_are_no_tracebacks() -> None:
    line = f"{sys.executable} -u -m zoo.train --help"
    for rest, said in (("| true", ""), ("> /dev/full", "error: No space left on device\n")):
        done = subprocess.run(
            f"{line} {rest}", shell=True, capture_output=True, text=True, check=False
        )
        assert done.stderr == said


def test_a_folder_is_not_written_over(command: Command) -> None:
    assert command("hydra.run.dir=here").returncode == 0
    before = Path("here/summary.json").read_bytes()
    again, other = (
        command("hydra.run.dir=here"),
        command("hydra.run.dir=here", "norm=rms", "resume=auto"),
    )
    assert "already holds a run" in again.stderr
    assert "different: norm" in other.stderr
    assert again.returncode
    assert other.returncode
    assert Path("here/summary.json").read_bytes() == before
    finished = command("hydra.run.dir=here", "resume=auto")
    assert finished.returncode == 0, finished.stderr
    assert "Validation" in finished.stdout
    assert Path("here/summary.json").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"\xff\x00\x80", b"- a\n- list\n", b"seed: [1, 2"])
def test_a_damaged_run_is_passed_over_and_refused_by_name(
    words: list[str], tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    composed, runs = config.compose([*words, "resume=auto"]), tmp_path / "runs"
    for number in range(2):
        (runs / str(number)).mkdir(parents=True)
        (runs / str(number) / "config.yaml").write_text(
            OmegaConf.to_yaml(composed), encoding="utf-8"
        )
    (runs / "1" / "config.yaml").write_bytes(content)
    os.utime(runs / "0" / "config.yaml", (0, 0))
    assert run_folder.newest_unfinished(composed, runs) == runs / "0"
    assert "1/config.yaml is damaged" in capsys.readouterr().out
    with pytest.raises(
        ZooError,
        match=r"1/config.yaml is damaged: rename .* to start anew, or choose another hydra.run.dir",
    ):
        run_folder.refuse_other_run(composed, runs / "1")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_is_found_and_gone_on_with(
    words: list[str], command: Command, number: int
) -> None:
    long = ["trainer.max_steps=400", "trainer.eval_every=200"]
    line = [sys.executable, "-m", "zoo.train", *words, *long]
    process = start(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 120
    while not list(Path("runs").glob("*/checkpoints/last.ckpt")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    (folder,) = Path("runs").iterdir()
    assert summary(folder)["status"] == ("running" if number == signal.SIGKILL else "interrupted")
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert b"resume=auto" in output
        assert b"Traceback" not in output
    done = command(*long, "resume=auto")
    assert done.returncode == 0, done.stderr
    assert list(Path("runs").iterdir()) == [folder]
    assert summary(folder)["status"] == "finished"
    assert [step for step, _, _ in losses(folder)] == [str(step) for step in range(2, 401, 2)]


def test_multirun_makes_a_run_a_combination(command: Command) -> None:
    done = command(
        "norm=layer,rms", "-m", "pos=learned,rope", "hydra.sweep.dir=sweep", "logger=wandb"
    )
    assert done.returncode == 0, done.stderr
    told = [summary(f"sweep/{job}") for job in range(4)]
    assert [(t["choices"]["norm"], t["choices"]["pos"]) for t in told] == [
        ("layer", "learned"),
        ("layer", "rope"),
        ("rms", "learned"),
        ("rms", "rope"),
    ]
    assert len(list(Path("sweep").glob("*/wandb/offline-run-*/*.wandb"))) == 4
    alone = command("norm=rms", "pos=learned", "hydra.run.dir=alone")
    assert alone.returncode == 0, alone.stderr
    assert equal(weights("alone"), weights("sweep/2"))


def test_a_sweep_goes_on_with_runs_only_when_asked_to(words: list[str], refused: Refused) -> None:
    for number, norm in enumerate(("layer", "rms")):
        Path(f"sweep/{number}").mkdir(parents=True)
        told = OmegaConf.to_yaml(config.compose([*words, f"norm={norm}", "resume=auto"]))
        Path(f"sweep/{number}/config.yaml").write_text(told, encoding="utf-8")
    jobs = ["-m", "norm=layer,rms", "trainer.sample=false"]
    elsewhere = ["hydra.sweep.dir='.'", "hydra.sweep.subdir='sweep/${hydra.job.num}'"]
    for place in (
        ["hydra.sweep.dir=sweep"],
        elsewhere,
    ):  # seen before the first job, or as it begins
        assert (
            "already holds a run: resume it by resume=auto, or choose another hydra.sweep.dir"
            in refused(train, *jobs, *place)
        )
        assert "different: norm" in refused(train, "-m", "norm=rms,layer", "resume=auto", *place)
    assert not list(Path("sweep").glob("*/summary.json"))


def test_multirun_refuses_a_meaningless_job_before_the_first(command: Command) -> None:
    done = command("-m", "attn=mha,gqa", "+attn.kv_heads=1,3", "hydra.sweep.dir=sweep")
    assert done.returncode != 0
    assert not Path("sweep").exists()


def test_a_job_that_fails_fails_alone(command: Command) -> None:
    done = command("-m", "optim.lr=1e-3,1e30", "seed=0,1", "hydra.sweep.dir=sweep")
    assert done.returncode != 0
    assert [summary(f"sweep/{job}")["status"] for job in range(4)] == [
        "finished",
        "finished",
        "diverged",
        "diverged",
    ]


def test_the_offline_wandb_file_tells_the_run(command: Command) -> None:
    done = command("norm=rms", "logger=wandb", "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert "wandb sync" in done.stdout
    (file,) = Path("run/wandb").glob("offline-run-*/*.wandb")
    run, history, exit_code = read_wandb(file)
    assert run["norm"] == "rms"
    assert run["parameters"] == summary("run")["parameters"]
    assert [row["val/loss"] for row in history if "val/loss" in row][-1] == pytest.approx(
        summary("run")["metrics"]["val/loss"]
    )
    assert exit_code == 0


def test_the_offline_wandb_file_tells_a_failure(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trainer: Any) -> None:
        raise RuntimeError("something broke")

    when(3, fail, monkeypatch)
    with pytest.raises(RuntimeError):
        train("run", "norm=rms", "logger=wandb")
    (file,) = Path("run/wandb").glob("offline-run-*/*.wandb")
    run, _, exit_code = read_wandb(file)
    assert run["norm"] == "rms"
    assert exit_code == 1


def test_help_lists_the_menu(command: Command) -> None:
    done = command("--help", tiny=False)
    assert done.returncode == 0
    assert re.search(r"^norm: .*layer.*rms", done.stdout, re.MULTILINE)
    assert "resume=auto" in done.stdout


def test_components_and_cost_speak_json(command: Command) -> None:
    menu = json.loads(command("--json", module="zoo.components", tiny=False, fresh=True).stdout)
    assert menu["norm"]["rms"]["options"] == {"eps": 1e-6, "zero_centered": False}
    cost = json.loads(
        command("--json", "model=gpt2", module="zoo.cost", tiny=False, fresh=True).stdout
    )
    assert cost["parameters"] == 124_439_808  # Radford 2019, as transformers counts it


def test_a_component_of_ones_own_works_as_contributing_shows_it(
    tmp_path: Path, words: list[str]
) -> None:
    shown = Path(__file__).parents[2] / "CONTRIBUTING.md"
    (code,) = re.findall(r"```python\n(.*?)```", shown.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "mine.py"
    script.write_text(
        code + "\n\nif __name__ == '__main__':\n    from zoo.train import main\n    main()\n",
        encoding="utf-8",
    )

    line = [sys.executable, str(script), *words, "norm=power"]
    done = bounded([*line, "norm.p=1.5", "hydra.run.dir=run"])
    wrong = bounded([*line, "norm.pp=1"], fresh=True)
    assert done.returncode == 0, done.stderr
    assert summary("run")["choices"]["norm"] == "power"
    assert "did you mean 'p'" in wrong.stderr
