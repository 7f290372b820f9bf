"""Several processes that train one model: what one process would have learned, and an end for
all of them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import probe
from tests.helpers.probe import PROBE
from tests.helpers.runs import Train, losses, summary
from zoo.checkpoints import reading
from zoo.checkpoints import weights as checkpoint_weights

Command = Callable[..., "subprocess.CompletedProcess[str]"]
# More experts than tokens choose, an odd number of blocks to evaluate, and a gradient that is
# clipped.
MODEL = [
    "ffn=moe",
    "ffn.experts=16",
    "ffn.top_k=1",
    "ffn.renormalize=false",
    "ffn.bias=true",
    "ffn.expert={name: relu, hidden: 8}",
    "pos=rope",
    "norm=scale",
    "residual=rezero",
    "trainer.clip=0.05",
    "trainer.log_every=1",
    "trainer.sample=false",
]


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("PROBE", "probe")
    return monkeypatch


def seen(rank: int = 0, folder: str = "probe") -> dict[str, Any]:
    return json.loads((Path(folder) / f"seen{rank}.json").read_text(encoding="utf-8"))


def one_process(train: Train, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    """The same in this process, into the folder `one`, watched likewise."""
    Path("alone").mkdir()
    with monkeypatch.context() as patch:
        for owner, name in (
            (probe.callbacks.SeedEverything, "on_train_batch_start"),
            (probe.callbacks.LossLogger, "on_train_batch_end"),
            (probe.lightning_module.LMModule, "on_fit_start"),
            (probe.lightning_module.LMModule, "on_before_zero_grad"),
        ):
            patch.setattr(owner, name, getattr(owner, name))  # to be put back
        probe.watch(Path("alone"))
        return train("one", *words)


def summary_of_data(train: Train) -> dict[str, Any]:
    return train("data", "trainer.max_steps=1")["data"]


def check_alike(told: dict[str, Any], folder: str, dropped: int = 0) -> None:
    """A run of two processes against that of one."""
    one, other = losses("one"), losses(folder)
    assert (
        [step for step, *_ in one]
        == [step for step, *_ in other]
        == [str(step) for step in range(1, 9)]
    )
    for (_, loss, val), (_, loss_, val_) in zip(one, other, strict=True):
        assert float(loss) == pytest.approx(float(loss_), abs=2e-5)
        assert (val == val_ == "") or float(val) == pytest.approx(float(val_), abs=2e-5)
    found = [np.load(f"{name}/evaluation.npz") for name in ("one", folder)]
    for key in found[0]:
        np.testing.assert_allclose(found[1][key], found[0][key], rtol=1e-3, atol=1e-3)
    assert found[0]["position_tokens"].sum() == told["data"]["splits"]["val"]["tokens"] - 1
    first = [torch.load(f"probe/first{rank}.pt") for rank in range(2)]
    alone = torch.load("alone/first0.pt")
    assert alone.keys() == first[0].keys() == first[1].keys()
    for values in first:
        assert all(torch.equal(values[name], alone[name]) for name in alone), (
            "equal to the bit before the first step"
        )
    watched = seen(0), seen(1)
    assert watched[0]["dropout"][0] != watched[1]["dropout"][0]
    assert len(set(map(tuple, watched[0]["dropout"] + watched[1]["dropout"]))) == 2 * len(
        watched[0]["dropout"]
    )
    norms = seen(0, "alone")["norms"][dropped:]
    assert watched[0]["norms"] == watched[1]["norms"] == pytest.approx(norms, rel=1e-3)
    assert max(norms) == pytest.approx(0.05, rel=1e-3), "that of all processes is clipped"
    saved = [reading.read_checkpoint(f"{name}/checkpoints/last.ckpt") for name in ("one", folder)]
    weights, weights_ = (checkpoint_weights.weights(checkpoint) for checkpoint in saved)
    assert weights.keys() == weights_.keys()
    assert "head.weight" not in weights
    for name in weights:
        torch.testing.assert_close(weights_[name], weights[name], rtol=1e-3, atol=1e-4)
    assert (
        checkpoint_weights.load_model(folder)[0](torch.zeros(1, 4, dtype=torch.long))
        .isfinite()
        .all()
    )


def test_shards_learn_what_one_process_learns(
    train: Train, command: Command, probed: pytest.MonkeyPatch
) -> None:
    one = one_process(train, probed, *MODEL)
    blocks = -(-(one["data"]["splits"]["val"]["tokens"] - 1) // 32)
    assert blocks % 2, "the processes have not as many blocks to evaluate"
    done = command(
        "trainer=fsdp_sim",
        *MODEL,
        "hydra.run.dir=two",
        "trainer.gradient_checkpointing=true",
        "logger=wandb",
        module=PROBE,
        fresh=True,
    )
    assert done.returncode == 0, done.stderr
    check_alike(one, "two")
    assert len(list(Path("two").glob("wandb/offline-run-*"))) == 1
    assert len(list(Path("two/checkpoints/last.ckpt").iterdir())) == 2
    assert len(list(Path("two/checkpoints").glob(".last*"))) == 2, (
        "that of previous.ckpt, and no more"
    )


def test_copies_learn_what_one_process_learns_also_when_one_is_told_to_stop(
    train: Train, command: Command, probed: pytest.MonkeyPatch
) -> None:
    tokens = summary_of_data(train)["splits"]["val"]["tokens"]
    data = (
        # one block to evaluate, so that the second process has none
        f"loader.eval_length={tokens}",
        "loader.stream=true",
        "loader.shuffle=9",
    )
    one = one_process(train, probed, *MODEL, *data)
    words = [
        "trainer=ddp_sim",
        *MODEL,
        *data,
        "hydra.run.dir=two",
        "trainer.accumulate=2",
        "logger=wandb",
        "resume=auto",
    ]
    probed.setenv("SIGNAL", "1")
    stopped = command(*words, module=PROBE)
    assert stopped.returncode == 130, stopped.stderr
    assert "interrupted (SIGTERM)" in stopped.stdout
    assert summary("two")["status"] == "interrupted"
    assert reading.read_checkpoint("two/checkpoints/last.ckpt")["global_step"] == 5
    run_id, first = summary("two")["id"], [torch.load(f"probe/first{rank}.pt") for rank in range(2)]
    done = command(*words, module=PROBE)
    assert done.returncode == 0, done.stderr
    for rank, values in enumerate(first):
        torch.save(values, f"probe/first{rank}.pt")
    check_alike(
        one, "two", dropped=4
    )  # those of steps 1 to 3 and 5; an evaluation clears that of step 4
    assert summary("two")["id"] == run_id
    assert {path.name.split("-")[-1] for path in Path("two").glob("wandb/offline-run-*")} == {
        run_id
    }


def test_in_a_sweep_a_job_of_which_one_process_fails_fails_alone(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE", str(Path("probe").resolve()))
    monkeypatch.setenv("FAIL", "1")
    done = command(
        "-m",
        "trainer=ddp_sim",
        "seed=13,0",
        "hydra.sweep.dir=sweep",
        "trainer.sample=false",
        module=PROBE,
    )
    assert done.returncode not in (0, -9)
    failed, finished = (summary(f"sweep/{job}") for job in range(2))
    assert (failed["status"], finished["status"]) == ("failed", "finished")
    assert failed["error"] == "RuntimeError: process 1 broke"
    assert finished["seed"] == 0
