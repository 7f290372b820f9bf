"""Launchers, and a cluster that is played: runs that are stopped, queued again, and go on
elsewhere.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers.commands import bounded
from tests.helpers.probe import PROBE
from tests.helpers.runs import Train, losses, summary, weights
from zoo.checkpoints import reading
from zoo.checkpoints import weights as checkpoint_weights

Command = Callable[..., "subprocess.CompletedProcess[str]"]
SRUN = """#!{python}
import os, subprocess, sys
word = next(number for number, word in enumerate(sys.argv) if number and not word.startswith("-"))
common = {{"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1",
           "SLURM_NODELIST": "localhost", "SLURM_NODEID": "0", "SLURM_JOB_NAME": "zoo"}}
own = [{{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}} for rank in range(2)]
tasks = [subprocess.Popen(sys.argv[word:], env=os.environ | common | rank) for rank in own]
open("tasks", "w").write(" ".join(str(task.pid) for task in tasks))
sys.exit(max(task.wait() for task in tasks))
"""


def alike(one: str, other: str) -> None:
    for (step, loss, val), (step_, loss_, val_) in zip(losses(one), losses(other), strict=True):
        assert step == step_
        assert float(loss or 0) == pytest.approx(float(loss_ or 0), abs=2e-5)
        assert float(val or 0) == pytest.approx(float(val_ or 0), abs=2e-5)
    for name, weight in weights(one).items():
        torch.testing.assert_close(
            reading.read_checkpoint(other)["state_dict"][name], weight, rtol=1e-3, atol=1e-4
        )


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_script_for_slurm_queues_a_stopped_run_again(
    train: Train, words: list[str], tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
    (tmp_path / "train.sh").write_text(
        re.findall(r"```bash\n(.*?)```", shown, re.DOTALL)[0], encoding="utf-8"
    )
    for name, content in {
        "srun": SRUN.format(python=sys.executable),
        "scontrol": "#!/bin/sh\necho $* >> requeued\n",
    }.items():
        place = tmp_path / "bin" / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(content, encoding="utf-8")
        place.chmod(0o755)
    monkeypatch.setenv(
        "PATH", f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    )
    monkeypatch.setenv("SLURM_JOB_ID", "12345")
    long = [
        "trainer.max_steps=400",
        "trainer.eval_every=400",
        "trainer.checkpoint_every=50",
        "trainer.log_every=50",
    ]
    line = [
        "bash",
        "train.sh",
        *words,
        "trainer.devices=2",
        "trainer.nodes=1",
        "trainer.precision=32-true",
        "trainer.compile=false",
        f"trainer.strategy={strategy}",
        *long,
    ]
    process = subprocess.Popen(line, start_new_session=True)
    try:
        folder, deadline = Path("runs/12345"), time.monotonic() + 200
        while not (folder / "checkpoints" / "last.ckpt").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for task in Path("tasks").read_text(encoding="utf-8").split():
            os.kill(int(task), signal.SIGUSR1)
        assert process.wait(100) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert summary(folder)["status"] == "interrupted"
    assert Path("requeued").read_text(encoding="utf-8") == "requeue 12345\n"
    done = bounded(line, 300)
    assert done.returncode == 0, done.stderr
    assert summary(folder)["status"] == "finished"
    assert Path("requeued").read_text(encoding="utf-8") == "requeue 12345\n", "once"
    monkeypatch.delenv("SLURM_JOB_ID")
    train("one", *long)
    alike("one", str(folder))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_in_shards_goes_on_with_any_other_processes(
    train: Train, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped as two shards, goes on as two, and then on one process; and the other way
    round.
    """
    same = "schedule=constant"  # whose rates do not depend on where it ends
    train("one", same, "trainer.max_steps=16")
    monkeypatch.setenv("PROBE", "probe")
    monkeypatch.setenv("SIGNAL", "1")
    for stop in (130, 0):
        done = command(same, "trainer=fsdp_sim", "hydra.run.dir=two", "resume=auto", module=PROBE)
        assert done.returncode == stop, done.stderr
    exported = command("ckpt=two", "out=model.safetensors", module="zoo.hf", tiny=False)
    assert exported.returncode == 0, exported.stderr
    from safetensors.torch import load_file

    expected = checkpoint_weights.weights(reading.read_checkpoint("two"))
    found = load_file("model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    more = (same, "trainer.max_steps=16", "changing=[trainer]", "resume=auto")
    train("two", *more)
    alike("one", "two")
    train("three", same)
    done = command("trainer=fsdp_sim", "hydra.run.dir=three", *more)
    assert done.returncode == 0, done.stderr
    alike("one", "three")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "ray"])
def test_a_launcher_runs_jobs_of_one_process_and_of_two(command: Command, launcher: str) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.split('_')[0]}_launcher")
    done = command(
        "-m",
        f"hydra/launcher={launcher}",
        "trainer=cpu,ddp_sim",
        "optim.lr=1e-3,1e30",
        "hydra.sweep.dir=sweep",
        "trainer.sample=false",
        *(["hydra.launcher.n_jobs=2"] if launcher == "joblib" else []),
    )
    assert done.returncode != 0
    assert [summary(f"sweep/{job}")["status"] for job in range(4)] == ["finished", "diverged"] * 2
    for (_, loss, val), (_, loss_, val_) in zip(losses("sweep/0"), losses("sweep/2"), strict=True):
        assert float(loss) == pytest.approx(float(loss_), abs=1e-5)
        assert float(val or 0) == pytest.approx(float(val_ or 0), abs=1e-5)
