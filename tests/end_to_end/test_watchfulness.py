"""What is watched while a run trains, what is done about it, and what it is told of its memory."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from rich.console import Console
from torch import Tensor

from tests.helpers.runs import TINY, equal, losses, summary, weights, when
from zoo import config, cost, models
from zoo.cost import memory_check
from zoo.data.baselines import stuck
from zoo.errors import ZooError
from zoo.training import module as lightning_module
from zoo.training import monitors, result_screen
from zoo.training.divergence import Diverged

Train = Callable[..., dict[str, Any]]


def rows(folder: str) -> dict[int, dict[str, str]]:
    with (Path(folder) / "metrics.csv").open(encoding="utf-8") as file:
        return {int(row["step"]): row for row in csv.DictReader(file)}


def size(tensors: list[Tensor]) -> float:
    """Root mean square."""
    return (
        (sum(x.double().square().sum() for x in tensors) / sum(x.numel() for x in tensors))
        .sqrt()
        .item()
    )  # type: ignore


def test_each_block_is_watched_and_nothing_changes_by_it(train: Train) -> None:
    """Weights and updates against those of checkpoints, gradients against those of the same
    batch in two parts.
    """
    same = ("schedule=constant", "optim.lr=0.01")
    train("watched", *same, "trainer.watch_every=4")
    train("unwatched", *same)
    train("before", *same, "trainer.max_steps=7")
    train("parts", *same, "trainer.watch_every=4", "trainer.accumulate=2")
    assert equal(weights("watched"), weights("unwatched"))
    assert not any(word.startswith("gradient/") for word in rows("unwatched")[8])
    row, new, old = rows("watched")[8], weights("watched"), weights("before")
    parts = [name.removeprefix("gradient/") for name in row if name.startswith("gradient/")]
    assert parts == ["embed", "stack.blocks.0", "stack.blocks.1", "stack"]
    for part in parts:
        inside = f"model.{part}." if part != "stack" else "model.stack."
        names = [
            name
            for name in new
            if name.startswith(inside) and (part != "stack" or "blocks" not in name)
        ]
        assert float(row[f"weight/{part}"]) == pytest.approx(
            size([new[name] for name in names]), rel=1e-4
        )
        updates = [new[name].double() - old[name].double() for name in names]
        assert float(row[f"update/{part}"]) == pytest.approx(size(updates), rel=1e-2)
        first = [float(rows(folder)[4][f"gradient/{part}"]) for folder in ("watched", "parts")]
        assert first[0] == pytest.approx(first[1], rel=1e-3)
        assert first[0] > 0
    assert rows("watched")[6].get("weight/embed") == ""
    assert float(row["train/memory_bytes"]) > 1e7
    assert "train/mfu" not in row, "the peak of this machine's processor is in no table"


def test_a_gradient_is_that_of_the_mean_over_all_tokens() -> None:
    """Vitals sees the gradient before the learner has scaled it by the tokens that were there."""
    logger = MagicMock()
    trainer = SimpleNamespace(
        global_step=0,
        loggers=[logger],
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
        fit_loop=SimpleNamespace(_should_accumulate=lambda: False),
    )
    module = SimpleNamespace(
        model=torch.nn.Sequential(torch.nn.Linear(3, 4)), gradient_scale=torch.tensor(2.0)
    )
    for parameter in module.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    watched = monitors.TrainingMonitor(1, SimpleNamespace(row={}), 0.0)
    watched.on_before_optimizer_step(trainer, module, None)
    trainer.global_step = 1
    watched.on_train_batch_end(trainer, module)
    assert logger.log_metrics.call_args[0][0]["gradient/0"] == pytest.approx(2 * 16**0.5)


def test_the_share_of_the_peak_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """nanoGPT's way of counting: 100,000 tokens/s at 1e9 FLOPs are a tenth of 989.4 TFLOP/s, and
    a twentieth of two.
    """

    class Trainer:
        class strategy:
            root_device = torch.device("cuda")

        precision, world_size = "bf16-mixed", 1

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    assert monitors.mfu(98_940, 1e9, Trainer()) == pytest.approx(0.1)
    Trainer.world_size = 2
    assert monitors.mfu(98_940, 1e9, Trainer()) == pytest.approx(0.05)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Abacus")
    assert monitors.mfu(98_940, 1e9, Trainer()) is None


def test_a_spike_is_what_lies_far_above_the_mean() -> None:
    """Against mean and deviation of all losses before, which an average over some 100 still is
    for the first of them.
    """
    losses = torch.rand(
        60, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).tolist()
    spikes = monitors.SpikeSkipper(3.0)
    assert not any(spikes.is_spike(loss) for loss in losses)
    assert spikes.mean == pytest.approx(sum(losses) / 60)
    assert spikes.variance == pytest.approx(
        torch.tensor(losses, dtype=torch.float64).var(correction=0).item()
    )
    most = spikes.mean + 3 * spikes.variance**0.5
    assert not spikes.is_spike(most - 1e-6)
    assert spikes.is_spike(most + 0.1)
    assert not spikes.is_spike(-100.0), "only above"
    assert spikes.skipped == 1


def test_few_losses_say_nothing_and_one_that_stays_high_is_accepted() -> None:
    early, late = monitors.SpikeSkipper(3.0), monitors.SpikeSkipper(3.0)
    assert not any(early.is_spike(loss) for loss in [1.0] * 19 + [1e6])
    for number in range(100):
        late.is_spike(1 + number % 2)
    judged = [late.is_spike(10.0) for _ in range(200)]
    assert judged[0]
    assert not judged[-1]


def test_what_is_known_of_spikes_is_all_saved() -> None:
    """Saved at any step and loaded, the next ones are judged as they would have been."""
    losses = [2 + math.sin(7 * step) + 3 * (step % 23 == 0) for step in range(120)]
    plain = monitors.SpikeSkipper(2.0)
    expected = [plain.is_spike(loss) for loss in losses]
    resumed = monitors.SpikeSkipper(2.0)
    found = []
    for loss in losses:
        found.append(resumed.is_spike(loss))
        state, resumed = resumed.state_dict(), monitors.SpikeSkipper(2.0)
        resumed.load_state_dict(state)
    assert found == expected
    assert 0 < sum(found) < 10


def test_a_spike_is_skipped_counted_and_remembered(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step leaves the weights as they are, and a run that was killed after it ends bit-equal
    to one that was not.
    """
    step = lightning_module.LMModule.training_step

    def spiking(self: Any, batch: Any, index: int) -> Tensor:
        loss = step(self, batch, index)
        if self.trainer.global_step == 3:
            self.step_sums[0] *= 50
        return loss

    class Killed(BaseException):
        pass

    def kill(trainer: Any) -> None:
        raise Killed

    monkeypatch.setattr(lightning_module.LMModule, "training_step", spiking)
    monkeypatch.setattr(monitors.SpikeSkipper, "first", 3)
    words = ("trainer.spike=4", "schedule=constant")
    told = train("whole", *words)
    assert told["skipped_steps"] == 1
    assert {step: row["train/skipped"] for step, row in rows("whole").items()} == {
        2: "",
        4: "1",
        6: "",
        8: "",
    }
    train("three", *words, "trainer.max_steps=3")
    train("four", *words, "trainer.max_steps=4")
    assert equal(weights("three"), weights("four"))
    with monkeypatch.context() as patch:
        when(6, kill, patch)
        with pytest.raises(Killed):
            train("killed", *words)
    assert train("killed", *words, "resume=auto")["skipped_steps"] == 1
    assert equal(weights("whole"), weights("killed"))
    assert losses("whole") == losses("killed")


def test_a_run_that_knows_no_more_than_frequencies_is_called_stuck(
    train: Train, capsys: Any
) -> None:
    told = train("run", "optim.lr=0")
    assert 0 < told["memory"]["needed_bytes"] < told["memory"]["free_bytes"]
    assert "warning" not in capsys.readouterr().out
    assert told["outcome"] == "stuck"
    assert told["status"] == "finished"
    yard = (
        told["yardsticks"]["unigram"] * torch.log(torch.tensor(2.0)).item()
    )  # which does not count the ends of documents
    assert told["unigram_nats"] == pytest.approx(yard, rel=0.05)
    console = Console(file=io.StringIO(), width=200)
    result_screen.show(told, Path("run"), console)
    assert "no better than the unigram baseline" in console.file.getvalue()  # type: ignore[attr-defined]


def test_stuck_is_at_the_level_of_frequencies_or_above() -> None:
    assert [stuck(loss, 3.0) for loss in (3.5, 3.0, 2.95, 2.5)] == [True, True, True, False]
    assert not stuck(9.0, None), "where no frequencies tell"


def test_a_run_that_diverged_has_that_outcome(train: Train) -> None:
    with pytest.raises(Diverged):
        train("run", "optim.lr=1e9", "trainer.clip=null")
    assert summary("run")["outcome"] == "diverged"


def test_a_run_that_needs_more_than_there_is_is_told_what_helps(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    needed = cost.memory(config.compose([word for word in TINY if not word.startswith("data.")]))
    monkeypatch.setattr(memory_check, "free", lambda graphics: needed["weights"] + 1)
    train("scarce")
    warning = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")
    )
    assert re.search(r"needs about [\d.]+ [KM]iB, and [\d.]+ KiB are free", warning)
    assert "loader.batch_size=2 (" in warning


def test_a_model_that_alone_is_more_than_there_is_is_refused_before_it_is_built(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be ended without a word by the machine's own guard of its memory."""
    built = models.build
    monkeypatch.setattr(
        models,
        "build",
        lambda config, *, device="cpu", **how: (
            built(config, device=device, **how) if device == "meta" else pytest.fail("it is built")
        ),
    )
    monkeypatch.setattr(memory_check, "free", lambda graphics: 1000.0)
    with pytest.raises(
        ZooError, match=r"this run needs about .*, and 1,000 B are free; .*loader.batch_size=2 \("
    ):
        train("scarce")
    assert summary("scarce")["status"] == "failed"


def test_what_helps_is_by_as_much_as_the_cost_model_says() -> None:
    """Each word is tried as a person would: on the command line."""
    words = [word for word in TINY if not word.startswith("data.")]
    now, found = (
        cost.training_memory(config.compose(words)),
        dict(memory_check.helps(config.compose(words))),
    )
    for word in ("trainer.gradient_checkpointing=true", "trainer.accumulate=2", "loader.length=16"):
        assert found[word] == cost.training_memory(config.compose([*words, word])) < now
    assert list(found.values()) == sorted(found.values())


def test_out_of_memory_says_what_helps(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own refusal, of more bytes than any machine has."""
    monkeypatch.setattr(lightning_module.LMModule, "training_step", lambda *_: torch.empty(2**50))
    with pytest.raises(
        ZooError, match=r"out of memory \(this run needs about .*trainer.accumulate=2 \("
    ):
        train("run")
    assert summary("run")["status"] == "failed"
    assert "loader.length=16" in summary("run")["error"]
    monkeypatch.setattr(
        lightning_module.LMModule, "training_step", lambda *_: torch.ones(2) @ torch.ones(3)
    )
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        train("other")


def test_what_is_free_is_a_part_of_what_the_machine_has() -> None:
    whole = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if "MemTotal" in line
    )
    found = memory_check.free(False)
    assert found is not None
    assert 0 < found <= 1024 * whole


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["trainer.spike=0"], "trainer.spike must be above 0"),
        (["trainer.spike=5", "trainer.precision=16-mixed"], "bf16-mixed"),
        (["trainer.watch_every=0"], "trainer.watch_every must be at least 1"),
        (
            ["trainer.watch_every=301"],
            "more than the run's trainer.max_steps=300, so that nothing would be watched",
        ),
    ],
)
def test_what_cannot_be_watched_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(ZooError, match=told):
        config.compose(words)
