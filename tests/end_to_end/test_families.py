"""BERT and T5 as a GPT is tested: they learn, go on bit-equal, share their steps, and are used
from their checkpoints.
"""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.helpers.runs import equal, losses, summary, weights, when
from zoo.checkpoints import weights as checkpoint_weights
from zoo.errors import ZooError
from zoo.generation import prompting
from zoo.training import result_screen

Train = Callable[..., dict[str, Any]]
Command = Callable[..., "subprocess.CompletedProcess[str]"]
FAMILIES = [["model=bert"], ["model=t5"], ["model=t5", "objective=seq2seq"]]
each_family = pytest.mark.parametrize("model", FAMILIES, ids="-".join)


def prompter(folder: str) -> Any:
    model, tokenizer, config = checkpoint_weights.load_model(folder)
    return prompting.prompter(config, model, tokenizer)


@pytest.mark.parametrize("model", [*FAMILIES, ["model=bert", "loader.isolate=true"]], ids="-".join)
def test_it_learns_and_ends_as_a_run_does(train: Train, model: list[str]) -> None:
    told = train("run", *model, "trainer.max_steps=60", "trainer.eval_every=30", "optim.lr=3e-3")
    val = [float(val) for _, _, val in losses("run") if val]
    assert val[-1] < val[0] < 5.6  # ln 257 is 5.55
    assert val[-1] == pytest.approx(told["metrics"]["val/loss"])
    assert told["tokens"] == 60 * 4 * 32
    assert told["metrics"]["train/tokens_per_second"] > 0
    assert "«" in told["sample"]
    shown = io.StringIO()
    result_screen.show(told, Path("run"), Console(file=shown, width=200))
    assert told["over"] in shown.getvalue()
    assert "xz" not in shown.getvalue(), "the yardsticks measure something else"
    assert ("MASK" in shown.getvalue()) == ("objective=seq2seq" not in model)


@each_family
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_goes_on_bit_equal(
    train: Train, monkeypatch: pytest.MonkeyPatch, model: list[str], workers: int
) -> None:
    extra = [*model, "arch.dropout=0.1", "trainer.accumulate=2", f"loader.workers={workers}"]
    train("whole", *model, "arch.dropout=0.1", "trainer.accumulate=2")

    class Killed(BaseException):
        pass

    def kill(trainer: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        when(6, kill, patch)
        with pytest.raises(Killed):
            train("killed", *extra)
    train("killed", *extra, "resume=auto")
    assert equal(weights("whole"), weights("killed"))
    assert losses("whole") == losses("killed")


@pytest.mark.parametrize(
    "model", [["model=bert", "norm=rms"], ["model=t5", "pos=rope"]], ids="-".join
)
def test_two_processes_see_what_one_sees_and_the_checkpoint_is_used(
    command: Command, model: list[str]
) -> None:
    one = command(*model, "hydra.run.dir=one")
    two = command(*model, "trainer=ddp_sim", "hydra.run.dir=two", "trainer.accumulate=2")
    assert one.returncode == 0, one.stderr
    assert two.returncode == 0, two.stderr
    assert summary("one")["over"] in " ".join(one.stdout.split())
    for (step, loss, val), (step_, loss_, val_) in zip(losses("one"), losses("two"), strict=True):
        assert step == step_
        assert float(loss) == pytest.approx(float(loss_), abs=1e-4)
        assert (val == val_ == "") or float(val) == pytest.approx(float(val_), abs=1e-4)
    asked = ("ckpt=one", "prompt=3 times [MASK] is 1[MASK]", "tokens=5", "temperature=0")
    written = command(*asked, module="zoo.generate", tiny=False)
    assert written.returncode == 0, written.stderr
    assert written.stdout.startswith("3 times ")
    assert "[MASK]" not in written.stdout
    assert ("mask 2:" in written.stdout) == ("model=bert" in model)


def test_masks_are_filled_with_shares_of_one(train: Train) -> None:
    train("run", "model=bert")
    bert = prompter("run")
    (first, second) = bert.fill_mask("3 ti[MASK]es [MASK]", top=257)
    for mask in (first, second):
        assert sum(share for _, share in mask) == pytest.approx(1)
        assert [share for _, share in mask] == sorted((share for _, share in mask), reverse=True)
    assert bert.fill_mask("3 ti[MASK]es [MASK]", top=2) == [first[:2], second[:2]]
    assert bert.answer("3 ti[MASK]es", tokens=1).startswith(
        f"3 ti{bert.fill_mask('3 ti[MASK]es')[0][0][0]}es"
    )
    with pytest.raises(ZooError, match=r"write \[MASK\] in the prompt"):
        bert.fill_mask("3 times")
    with pytest.raises(ZooError, match=r"arch\.length"):
        bert.fill_mask("3 times " * 5 + "[MASK]")


def test_gaps_are_filled_and_texts_gone_on_with(train: Train) -> None:
    train("span", "model=t5")
    t5 = prompter("span")
    filled = [
        t5.generate("3 [MASK] 4 is [MASK].", tokens=12, temperature=1.0, seed=seed)
        for seed in (0, 0, 1)
    ]
    assert filled[0] == filled[1] != filled[2]
    assert all(text.startswith("3 ") and text.endswith(".") and " 4 is " in text for text in filled)
    assert t5.generate("3 times", tokens=0) == "3 times"
    with pytest.raises(ZooError, match="sentinels for 2 gaps, not for 3"):
        t5.generate("[MASK] [MASK] [MASK]")
    train("pairs", "model=t5", "objective=seq2seq", "pos=learned")
    pairs = prompter("pairs")
    assert pairs.generate("3 times", tokens=9).startswith("3 times")
    with pytest.raises(ZooError, match="ask for at most 31"):
        pairs.generate("3 times", tokens=32)
    with pytest.raises(ZooError, match="fills no"):
        pairs.generate("3 [MASK]")
