"""A number that is not finite, wherever it comes up: the run has diverged, and nothing of it is
kept or used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.runs import TINY, Train, equal, in_shards, summary, weights, when
from zoo import generate, objectives
from zoo.checkpoints import reading
from zoo.checkpoints import weights as checkpoint_weights
from zoo.data.baselines import stuck
from zoo.errors import ZooError
from zoo.hf.__main__ import main as export
from zoo.training import module as lightning_module
from zoo.training.divergence import Diverged
from zoo.training.fsdp import Sharded

FREE = ("optim=schedule_free", "schedule=constant")


@pytest.fixture
def train(train: Train) -> Train:
    return lambda folder, *words: train(folder, "trainer.sample=false", *words)


def evaluated(
    change: Callable[[Tensor, int], Tensor], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Change the nats of each batch of an evaluation, which are given with the batch's number;
    those numbers are returned.
    """
    seen: list[int] = []
    before = objectives.Objective.evaluate

    def evaluate(self: Any, model: Any, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        nats, right, labels = before(self, model, batch)
        seen.append(len(seen))
        return change(nats, seen[-1]), right, labels

    monkeypatch.setattr(objectives.Objective, "evaluate", evaluate)
    return seen


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_an_evaluation_of_which_some_batches_are_not_finite_ends_the_run(
    train: Train, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """One batch in two gives one such number; a mean of the others would be a plausible loss."""

    def poison(nats: Tensor, number: int) -> Tensor:
        return nats.index_fill(0, torch.tensor([3]), value) if number % 2 else nats

    seen = evaluated(poison, monkeypatch)
    with pytest.raises(
        Diverged, match=r"^val/loss became -?(nan|inf) at step 4: try a lower optim.lr"
    ):
        train("run")
    assert len(seen) > 4
    told = summary("run")
    assert (told["status"], told["outcome"], told["steps"]) == ("diverged", "diverged", 4)
    assert told["diverged"] == {"step": 4, "what": "val/loss", "value": str(value)}
    assert "metrics" not in told
    assert not list(Path("run/checkpoints").glob("*"))
    assert "val/loss" not in Path("run/metrics.csv").read_text(encoding="utf-8")


def test_a_metric_too_large_for_a_float_is_not_shown_as_another(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(lambda nats, number: 0 * nats + 800, monkeypatch)
    with pytest.raises(Diverged, match="val/perplexity became inf at step 4"):
        train("run")


def test_the_best_of_before_stays_where_a_later_evaluation_is_not_finite(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        first = evaluated(lambda nats, number: nats, patch)
        train("fine", "trainer.max_steps=4", "schedule=constant")
    evaluated(lambda nats, number: nats / (number < len(first)), monkeypatch)
    with pytest.raises(Diverged, match=r"val/loss became (nan|inf) at step 8"):
        train("run", "schedule=constant")
    assert equal(weights("run", "best"), weights("fine"))
    assert equal(weights("run", "last"), weights("fine"))


def poisoned(what: str, value: float) -> Callable[[Any], None]:
    """Put a value into one number of a weight, or of what the optimiser keeps."""

    def act(trainer: Any) -> None:
        weight = trainer.lightning_module.model.stack.blocks[1].ffn.sublayer.out.weight
        tensor = weight if what == "weight" else trainer.optimizers[0].state[weight][what]
        with torch.no_grad():
            tensor.view(-1)[-1] = value

    return act


@pytest.mark.parametrize(
    ("what", "value", "words"),
    [
        ("weight", torch.nan, ()),
        ("weight", 1e30, ()),
        ("exp_avg_sq", torch.inf, ()),
        ("x", torch.nan, FREE),
    ],
)
def test_weights_that_are_not_finite_are_not_kept(
    train: Train, monkeypatch: pytest.MonkeyPatch, what: str, value: float, words: tuple[str, ...]
) -> None:
    """The update of a checkpoint's own step is in no loss yet."""
    every = ("trainer.checkpoint_every=3", "trainer.eval_every=8", "trainer.max_steps=7", *words)
    when(6, poisoned(what, value), monkeypatch)
    with pytest.raises(
        Diverged,
        match=r"(ffn\S*out.weight|the optimiser's \w+) was no longer a finite number at step 6",
    ):
        train("run", *every)
    told = summary("run")
    assert (told["status"], told["diverged"]["step"]) == ("diverged", 6)
    kept = reading.read_checkpoint("run/checkpoints/last.ckpt")
    assert kept["global_step"] == 3
    assert not Path("run/checkpoints/previous.ckpt").exists()


def test_so_are_they_not_as_the_best_or_at_the_end(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last value that no token of the text asks for: its evaluation is finite."""

    def unseen(trainer: Any) -> None:
        trainer.lightning_module.model.stack.blocks[0].attn.sublayer.register_parameter(
            "unused", torch.nn.Parameter(torch.tensor([torch.nan]))
        )

    for step, words in (
        (4, ("trainer.checkpoint_every=100",)),
        (7, ("trainer.checkpoint_every=100", "trainer.max_steps=7")),
    ):
        with monkeypatch.context() as patch:
            when(step, unseen, patch)
            with pytest.raises(
                Diverged, match=f"unused was no longer a finite number at step {step}"
            ):
                train(f"run{step}", *words)
        assert [path.name for path in Path(f"run{step}/checkpoints").glob("*.ckpt")] == (
            ["best.ckpt"] if step == 7 else []
        )


def test_a_training_loss_that_is_not_finite_in_one_micro_batch_ends_the_run(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the step is skipped, so that neither weights nor evaluations know of it."""
    step = lightning_module.LMModule.training_step

    def overflowing(self: Any, batch: Any, index: int) -> Tensor:
        loss = step(self, batch, index)
        if self.trainer.global_step == 2 and not index % 2:
            self.step_sums[0] += torch.inf
            self.row_sums[0] += torch.inf
        return loss

    monkeypatch.setattr(lightning_module.LMModule, "training_step", overflowing)
    monkeypatch.setattr(
        "zoo.training.callbacks.LossLogger._reads_at_once",
        staticmethod(lambda trainer, module: False),
    )
    words = ("trainer.accumulate=2", "trainer.log_every=100", "trainer.checkpoint_every=100")
    with pytest.raises(Diverged, match=r"^train/loss became inf at step 4"):
        train("run", *words)
    assert not list(Path("run").rglob("*.ckpt"))


def test_a_watched_figure_that_is_not_finite_ends_the_run(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.training.monitors.peak_memory", lambda: torch.inf)
    with pytest.raises(Diverged, match=r"train/memory_bytes became inf at step 2"):
        train("run", "trainer.watch_every=2", "trainer.log_every=100")


def test_a_step_without_a_label_has_no_loss(train: Train) -> None:
    told = train(
        "run",
        "model=bert",
        "arch.layers=2",
        "arch.dim=32",
        "arch.heads=2",
        "objective.rate=1e-9",
        "objective.eval_rate=0.5",
    )
    assert "train/loss" not in told["metrics"], "it would be 0"
    assert "train/loss" not in Path("run/metrics.csv").read_text(encoding="utf-8")


def test_a_loss_that_is_no_number_has_learned_nothing() -> None:
    assert stuck(float("nan"), 3.0)


def harmed(path: str, value: float, part: str = "state_dict") -> None:
    checkpoint = torch.load(path, weights_only=True)
    state = (
        checkpoint["optimizer_states"][0]["state"][0]["exp_avg"]
        if part == "optimizer"
        else checkpoint["state_dict"]["model.embed.weight"]
    )
    state.view(-1)[5] = value
    torch.save(checkpoint, path)


@pytest.mark.parametrize(
    ("value", "part"),
    [(torch.nan, "state_dict"), (torch.inf, "state_dict"), (torch.nan, "optimizer")],
)
def test_a_checkpoint_that_is_not_finite_is_passed_over_and_named(
    train: Train, value: float, part: str
) -> None:
    words = ("trainer.checkpoint_every=2",)
    train("run", *words)
    expected = weights("run")
    harmed("run/checkpoints/last.ckpt", value, part)
    told = train("run", *words, "resume=auto")
    what = "embed.weight" if part == "state_dict" else "the optimiser's exp_avg"
    assert told["note"].startswith(
        f"run/checkpoints/last.ckpt is of a run that had diverged: {what} holds NaN, infinity"
    )
    assert "resuming from the one before, run/checkpoints/previous.ckpt" in told["note"]
    assert equal(expected, weights("run"))
    for name in ("last", "previous", "best"):
        harmed(f"run/checkpoints/{name}.ckpt", value, part)
    with pytest.raises(
        ZooError, match=r"last.ckpt is of a run that had diverged: .*there is no other"
    ):
        train("run", *words, "resume=auto")


def test_a_share_of_a_checkpoint_that_is_not_finite_ends_all_ranks(train: Train) -> None:
    """The second of two finds it, in the rows that are its own to look at."""
    train("run")
    last = Path("run/checkpoints/last.ckpt")
    part = in_shards(last, 2) / "1.pt"
    model = checkpoint_weights.load_model("run")[0]

    class Second(Sharded):
        global_rank, world_size, is_global_zero = 1, 2, True  # type: ignore[assignment]
        lightning_module = SimpleNamespace(model=model)  # type: ignore[assignment]

        def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
            return decision

    Second(2).load_checkpoint(last)
    saved = torch.load(part, weights_only=True)
    saved["state_dict"]["model.embed.weight"]["own rows"][0, 0] = torch.nan
    torch.save(saved, part)
    with pytest.raises(
        reading.Damaged,
        match=r"of a run that had diverged.* It is last.damaged now, so that resume=auto",
    ):
        Second(2).load_checkpoint(last)


def test_what_loads_weights_that_are_not_finite_says_so(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generation and export, of a zoo's checkpoint and of a model in memory."""
    from zoo import hf

    train("run", "model=gpt2", *TINY)
    model = checkpoint_weights.load_model("run")[0]
    theirs = hf.to_hf(model)
    best = "run/checkpoints/best.ckpt"
    harmed(best, torch.nan)
    told = "is of a run that had diverged: embed.weight holds NaN, infinity"
    for command, words in (
        (generate.main, ["prompt=3"]),
        (export, ["out=folder"]),
        (export, ["out=weights.safetensors"]),
    ):
        monkeypatch.setattr(sys, "argv", ["command", "ckpt=run", *words])
        with pytest.raises(SystemExit, match=told):
            command()
    assert not Path("folder").exists()
    assert not Path("weights.safetensors").exists()
    for each, convert in ((model, hf.to_hf), (theirs, hf.from_hf)):
        with torch.no_grad():
            next(each.parameters()).view(-1)[0] = torch.inf
        with pytest.raises(ZooError, match=r"is of a run that had diverged: embed\.weight holds"):
            convert(each)


def test_logits_that_are_not_finite_are_a_sentence_whatever_the_temperature() -> None:
    from tests.helpers.components import make, tokens
    from zoo import generation

    model = make()
    with torch.no_grad():
        model.head.register_forward_hook(
            lambda module, given, logits: logits.index_fill(-1, torch.tensor([2]), torch.nan)
        )
    for temperature in (0.0, 0.8):
        with pytest.raises(ZooError, match="the model's logits are not finite"):
            generation.generate(model, tokens(), 3, temperature=temperature)
    with pytest.raises(ZooError, match="the model's logits are not finite"):
        generation.at_places(model, tokens(), torch.tensor([1]), 32)
