"""A run that goes on: to the bit after any end, changed only in what is named, refused where it
cannot.
"""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.runs import Train, equal, losses, summary, weights, when
from zoo import config
from zoo.checkpoints import reading
from zoo.errors import ZooError
from zoo.tracking import run_folder
from zoo.training import module
from zoo.training.signals import Interrupted

# The first epoch of this stream, about 70 blocks, ends in the 5th step.
STREAM = (
    "loader.stream=true",
    "loader.shuffle=9",
    "loader.batch_size=16",
    "data.val_fraction=0.4",
    "data.test_fraction=0.3",
)


@pytest.mark.parametrize(
    ("step", "more"),
    [
        (3, ("optim=adamw",)),
        (4, ("optim=muon",)),
        (6, ("optim=schedule_free", "schedule=constant", "trainer.checkpoint_every=3")),
        (6, ("optim=adafactor", *STREAM, "trainer.checkpoint_every=5")),
        (
            6,
            (
                *STREAM,
                "loader.workers=1",
                "tokenizer=bpe",
                "tokenizer.vocab=259",
                "trainer.checkpoint_every=3",
            ),
        ),
    ],
)
def test_a_killed_run_goes_on_bit_equal(
    train: Train, monkeypatch: pytest.MonkeyPatch, step: int, more: tuple[str, ...]
) -> None:
    extra = ("arch.dropout=0.1", "trainer.accumulate=2", *more)
    train("whole", *extra)

    class Killed(BaseException):
        pass

    def kill(trainer: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        when(step, kill, patch)
        with pytest.raises(Killed):
            train("killed", *extra)
    told = train("killed", *extra, "resume=auto")
    assert told["status"] == "finished"
    assert equal(weights("whole"), weights("killed"))
    assert losses("whole") == losses("killed")


@pytest.mark.parametrize(
    ("number", "step"), [(signal.SIGINT, 3), (signal.SIGTERM, 3), (signal.SIGTERM, 4)]
)
def test_a_signal_leaves_a_usable_checkpoint_and_says_so(
    train: Train, monkeypatch: pytest.MonkeyPatch, number: int, step: int
) -> None:
    train("whole")
    handler = signal.getsignal(number)
    with monkeypatch.context() as patch:
        when(step, lambda trainer: os.kill(os.getpid(), number), patch)
        with pytest.raises(Interrupted):
            train("stopped")
    assert signal.getsignal(number) is handler
    assert summary("stopped")["status"] == "interrupted"
    assert signal.Signals(number).name in summary("stopped")["error"]
    assert reading.read_checkpoint("stopped/checkpoints/last.ckpt")["global_step"] == step
    train("stopped", "resume=auto")
    assert equal(weights("whole"), weights("stopped"))
    assert losses("whole") == losses("stopped")


def test_what_changes_when_a_run_goes_on_is_named_or_refused(
    train: Train, words: list[str]
) -> None:
    train("run")
    for more, finished in (
        ((), True),
        (("trainer.max_steps=12", "changing=[trainer.max_steps]"), False),
    ):
        assert (
            run_folder.is_finished(config.compose([*words, "resume=auto", *more]), Path("run"))
            is finished
        )
    for change in (
        "trainer.max_steps=12",
        "loader.batch_size=8",
        "optim.lr=1e-3",
        "data.val_fraction=0.2",
    ):
        key = change.split("=")[0]
        with pytest.raises(ZooError, match=rf"different: {key}.*changing=\[{key}\]"):
            train("run", change, "resume=auto")
    longer = ("trainer.max_steps=12", "loader.batch_size=8")
    told = train("run", *longer, "resume=auto", "changing=[trainer.max_steps,loader.batch_size]")
    assert told["steps"] == 12
    position = torch.load("run/checkpoints/last.ckpt", weights_only=True)["loops"]["fit_loop"][
        "state_dict"
    ]["combined_loader"]
    assert "'start': 64" in str(position), "8 steps of 4 blocks, and then 4 of 8"
    with pytest.raises(ZooError, match=r"different: loader\.batch_size"):
        train("run", "trainer.max_steps=12", "resume=auto")
    for change in (("loader.length=16",), ("loader.stream=true",)):
        with pytest.raises(ZooError, match=r"cannot resume: the data were .* changing=\[data\]"):
            train(
                "run",
                *longer,
                *change,
                "trainer.max_steps=16",
                "resume=auto",
                "changing=[trainer.max_steps,loader]",
            )
    streamed = (
        "loader.stream=true",
        "trainer.max_steps=14",
        "changing=[trainer.max_steps,loader,data]",
    )
    assert train("run", *longer, *streamed, "resume=auto")["steps"] == 14


def rates(path: str) -> dict[int, float]:
    with Path(path, "metrics.csv").open(encoding="utf-8") as file:
        return {
            int(row["step"]): float(row["train/lr"])
            for row in csv.DictReader(file)
            if row.get("train/lr")
        }


def test_an_optimiser_and_a_schedule_that_are_changed_by_name_are_changed(train: Train) -> None:
    steady = ("schedule=constant", "schedule.warmup=0", "optim.lr=1e-3")
    train("run", *steady)
    more = (
        "trainer.max_steps=12",
        "resume=auto",
        "optim.lr=5e-4",
        "optim.weight_decay=0.3",
        "optim.beta1=0.5",
    )
    train("run", *steady, *more, "changing=[trainer,optim]")
    assert rates("run")[8] == pytest.approx(1e-3)
    assert rates("run")[12] == pytest.approx(5e-4)
    saved = torch.load("run/checkpoints/last.ckpt", weights_only=True)["optimizer_states"][0][
        "param_groups"
    ]
    assert [(group["weight_decay"], group["betas"]) for group in saved] == [
        (0.3, (0.5, 0.95)),
        (0.0, (0.5, 0.95)),
    ]
    falling = (
        "schedule=linear",
        "schedule.warmup=0",
        "trainer.max_steps=16",
        "optim.lr=5e-4",
        "resume=auto",
    )
    train(
        "run",
        *steady,
        *falling,
        "optim.weight_decay=0.3",
        "optim.beta1=0.5",
        "changing=[trainer,schedule]",
    )
    assert rates("run")[14] == pytest.approx(5e-4 * (1 - 13 / 16)), (
        "that of the step, not of the next one"
    )


def test_the_first_step_of_more_is_at_the_rate_of_the_longer_schedule(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: dict[int, float] = {}
    before = module.LMModule.on_before_optimizer_step

    def noted(self: Any, optimizer: Any) -> None:
        used[self.trainer.global_step] = optimizer.param_groups[0]["lr"]
        before(self, optimizer)

    monkeypatch.setattr(module.LMModule, "on_before_optimizer_step", noted)
    falling = ("schedule=linear", "schedule.warmup=0", "optim.lr=1e-3")
    train("run", *falling)
    assert used[7] == pytest.approx(1e-3 * (1 - 7 / 8))
    train("run", *falling, "trainer.max_steps=12", "resume=auto", "changing=[trainer.max_steps]")
    assert [used[step] for step in range(8, 12)] == pytest.approx(
        [1e-3 * (1 - step / 12) for step in range(8, 12)]
    )


def test_a_resume_that_is_refused_leaves_the_run_as_it_was(train: Train) -> None:
    train("run")
    before = Path("run/config.yaml").read_bytes()
    other = {
        r"holds the state of optim=adamw, which optim=muon cannot resume": (
            "optim=muon",
            "changing=[trainer,optim]",
        ),
        r"cannot resume: the data were": ("loader.length=16", "changing=[trainer,loader]"),
        r"is of step 8, beyond trainer.max_steps=6": ("trainer.max_steps=6", "changing=[trainer]"),
    }
    for told, words in other.items():
        with pytest.raises(ZooError, match=told):
            train("run", "trainer.max_steps=12", *words, "resume=auto")
        assert Path("run/config.yaml").read_bytes() == before
    assert train("run", "trainer.max_steps=12", "changing=[trainer]", "resume=auto")["steps"] == 12
    assert b"max_steps: 12" in Path("run/config.yaml").read_bytes()


def test_a_run_that_is_moved_knows_its_best(train: Train) -> None:
    train("run")
    path = Path("run/checkpoints/last.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    best = next(state for name, state in checkpoint["callbacks"].items() if name.startswith("Best"))
    best["best_model_score"] = torch.tensor(0.1)
    best["best_k_models"] = dict.fromkeys(best["best_k_models"], torch.tensor(0.1))
    best["kth_value"] = torch.tensor(0.1)
    torch.save(checkpoint, path)
    kept = Path("run/checkpoints/best.ckpt").read_bytes()
    Path("run").rename("moved")
    train("moved", "trainer.max_steps=12", "changing=[trainer]", "resume=auto")
    assert Path("moved/checkpoints/best.ckpt").read_bytes() == kept


def test_other_text_is_other_data(train: Train, text: Path, tmp_path: Path) -> None:
    for file in text.iterdir():
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own" / file.name).write_bytes(file.read_bytes())
    train("run", f"data.path={tmp_path / 'own'}")
    (tmp_path / "own" / "0.txt").write_text("another text", encoding="utf-8")
    longer = (f"data.path={tmp_path / 'own'}", "trainer.max_steps=12", "resume=auto")
    with pytest.raises(ZooError, match=r"was made with other data .* changing=\[data\]"):
        train("run", *longer, "changing=[trainer.max_steps]")
    assert train("run", *longer, "changing=[trainer.max_steps,data]")["steps"] == 12
