"""What a run leaves, and how it ends, well or badly."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from filelock import FileLock
from omegaconf import OmegaConf

from tests.helpers.runs import Hostile, Train, equal, losses, summary, weights, when
from zoo import config, registry
from zoo.checkpoints import reading
from zoo.checkpoints import weights as checkpoint_weights
from zoo.cost import gpus
from zoo.data import cache
from zoo.errors import ZooError
from zoo.generation import prompting
from zoo.launch import preflight
from zoo.training import console
from zoo.training.divergence import Diverged


def test_rows_are_printed_as_they_come_without_a_terminal(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train("run", "trainer.eval_every=8")
    first, *_ = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert first.startswith("step 2/8  train/loss "), (
        "long before the evaluation, which is at the end"
    )
    monkeypatch.setattr(console, "PAUSE", 0.0)
    train("other", "trainer.eval_every=8")
    shown = [
        line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("step ")
    ]
    assert list(dict.fromkeys(shown)) == ["2/8", "4/8", "6/8", "8/8"]


def test_the_run_folder_holds_what_the_contract_says(train: Train) -> None:
    told = train("run", "norm=rms", "pos=rope", "tokenizer=bpe", "tokenizer.vocab=300")
    assert told == summary("run")
    assert told["status"] == "finished"
    assert told["error"] is None
    assert told["choices"]["norm"] == "rms"
    assert told["choices"]["pos"] == "rope"
    assert told["overrides"][0] == "norm=rms"
    assert told["steps"] == 8
    assert told["tokens"] == 8 * 4 * 32
    assert {"val/loss", "val/perplexity", "val/bits_per_byte"} <= told["metrics"].keys()
    assert {"unigram", "bigram", "xz"} <= told["yardsticks"].keys()
    assert {"fingerprint", "documents", "bytes", "tokens"} <= told["data"].keys()
    for key in (
        "seed",
        "parameters",
        "flops_per_token",
        "tokens_per_second",
        "peak_memory_bytes",
        "versions",
    ):
        assert told[key] is not None
    assert "${" not in Path("run/config.yaml").read_text(encoding="utf-8")
    assert OmegaConf.load("run/config.yaml").loader.length == 32
    for name in ("last", "best"):
        assert all("=" not in key.name for key in Path("run/checkpoints").iterdir())
        checkpoint = reading.read_checkpoint(Path("run/checkpoints") / f"{name}.ckpt")
        assert checkpoint["zoo"]["config"]["norm"]["name"] == "rms"
    steps = [step for step, _, _ in losses("run")]
    assert steps == ["2", "4", "6", "8"]
    assert [step for step, _, val in losses("run") if val] == ["4", "8"]


def test_training_beats_the_unigram_yardstick(train: Train) -> None:
    told = train("run", "trainer.max_steps=150", "trainer.eval_every=150", "optim.lr=5e-3")
    assert told["metrics"]["val/bits_per_byte"] < told["yardsticks"]["unigram"]
    assert told["outcome"] == "learned"


def test_bits_per_byte_is_the_loss_in_other_units_when_every_byte_is_a_token(train: Train) -> None:
    told = train("run")
    tokens, size = (told["data"]["splits"]["val"][key] for key in ("tokens", "bytes"))
    expected = (
        told["metrics"]["val/loss"] * (tokens - 1) / size / torch.log(torch.tensor(2.0)).item()
    )
    assert told["metrics"]["val/bits_per_byte"] == pytest.approx(expected, rel=1e-6)


def test_each_document_and_position_has_its_loss(train: Train) -> None:
    """Their sums are the loss that the summary has, and a document's is that of its tokens
    alone.
    """
    told = train("run", "loader.eval_length=16", "pos=rope", "data.val_fraction=0.2")
    found = np.load("run/evaluation.npz", allow_pickle=False)
    counts = told["data"]["splits"]["val"]
    assert found["document_nats"].shape == (counts["documents"],)
    assert found["position_nats"].shape == (16,)
    for part in ("document", "position"):
        assert found[f"{part}_tokens"].sum() == counts["tokens"] - 1
        loss = found[f"{part}_nats"].sum() / found[f"{part}_tokens"].sum()
        assert loss == pytest.approx(told["metrics"]["val/loss"], rel=1e-7)
    assert 0 < told["metrics"]["val/accuracy"] < 1
    tokens = cache.load(
        *(registry.build(group, told_config("run")[group]) for group in ("data", "tokenizer"))
    ).splits["val"]
    assert found["document_tokens"][:-1].tolist() == np.diff(tokens.starts).tolist()


def told_config(folder: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(f"{folder}/config.yaml"))


def test_the_same_words_give_the_same_weights_and_another_seed_others(train: Train) -> None:
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(folder, f"seed={seed}", "arch.dropout=0.1")
    assert equal(weights("a"), weights("b"))
    assert not equal(weights("a"), weights("c"))


def test_a_model_whose_optimiser_keeps_a_mean_is_evaluated_and_saved_as_that(train: Train) -> None:
    free = (
        "optim=schedule_free",
        "schedule=constant",
        "trainer.checkpoint_every=3",
        "trainer.max_steps=7",
    )
    train("run", *free)
    for name in ("previous", "best", "last"):  # of steps 6 and 7, beside an evaluation and without
        checkpoint = reading.read_checkpoint(f"run/checkpoints/{name}.ckpt")
        weights, states = (
            checkpoint_weights.weights(checkpoint),
            checkpoint["optimizer_states"][0]["state"].values(),
        )
        means = {state["x"].numpy().tobytes() for state in states}
        assert {weight.numpy().tobytes() for weight in weights.values()} == means, name
        assert means.isdisjoint(state["y"].numpy().tobytes() for state in states), name
    with pytest.raises(
        ZooError, match=r"optim=schedule_free is made for schedule=constant, not cosine"
    ):
        train("falling", "optim=schedule_free")


def test_a_loss_that_is_no_number_stops_the_run_and_is_told(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poison(trainer: Any) -> None:
        with torch.no_grad():
            trainer.model.model.embed.weight.fill_(torch.nan)

    when(5, poison, monkeypatch)
    with pytest.raises(Diverged, match="nan at step 6"):
        train("run")
    assert summary("run")["status"] == "diverged"
    assert all(
        weight.isfinite().all() for weight in weights("run").values() if weight.is_floating_point()
    )


def test_two_processes_do_not_train_in_one_folder(train: Train) -> None:
    Path("run").mkdir()
    with FileLock("run/.lock"), pytest.raises(ZooError, match="another process is training in run"):
        train("run")
    assert not Path("run/summary.json").exists()
    train("run")


def test_any_other_failure_is_told(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(trainer: Any) -> None:
        raise RuntimeError("something broke")

    when(3, fail, monkeypatch)
    with pytest.raises(RuntimeError):
        train("run")
    assert summary("run")["status"] == "failed"
    assert "something broke" in summary("run")["error"]
    assert summary("run")["parameters"] > 0


@pytest.mark.parametrize("accumulate", [2, 4])
def test_accumulation_changes_nothing_but_memory(train: Train, accumulate: int) -> None:
    train("one", "trainer.max_steps=4")
    train("many", "trainer.max_steps=4", f"trainer.accumulate={accumulate}")
    for name, weight in weights("one").items():
        torch.testing.assert_close(weights("many")[name], weight, rtol=1e-4, atol=1e-5)


def test_gradient_checkpointing_changes_nothing_but_memory(train: Train) -> None:
    train("plain", "arch.dropout=0.1")
    train("checkpointed", "arch.dropout=0.1", "trainer.gradient_checkpointing=true")
    assert equal(weights("plain"), weights("checkpointed"))


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_lower_precision_trains_with_clipping(train: Train, precision: str) -> None:
    told, exact = train("run", f"trainer.precision={precision}"), train("exact")
    assert told["metrics"]["val/loss"] == pytest.approx(exact["metrics"]["val/loss"], rel=0.03)
    spread = np.load("run/evaluation.npz")  # a mean of sums in 16 bits would be another
    assert told["metrics"]["val/loss"] == pytest.approx(
        spread["position_nats"].sum() / spread["position_tokens"].sum()
    )


def test_machines_that_nothing_has_started_are_not_waited_for(train: Train) -> None:
    with pytest.raises(
        ZooError,
        match=r"trainer.nodes=2 needs its processes started on each machine, by srun or torchrun",
    ):
        train("run", "trainer.nodes=2", "trainer.accelerator=cpu", "trainer.strategy=ddp")


def test_isolated_documents_train(train: Train) -> None:
    assert train("run", "loader.isolate=true", "pos=rope")["status"] == "finished"


def test_a_vocabulary_too_small_for_the_tokenizer_is_refused(train: Train) -> None:
    with pytest.raises(ZooError, match=r"arch.vocab=100 is smaller than the tokenizer's 257"):
        train("run", "arch.vocab=100")


def test_a_checkpoint_of_another_shape_is_refused_by_name(train: Train) -> None:
    train("run")
    with pytest.raises(ZooError, match=r"embed.weight is \(257, 32\) there and \(257, 16\) here"):
        train("run", "arch.dim=16")


def test_a_hostile_checkpoint_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "evil.ckpt").write_bytes(pickle.dumps({"state_dict": {}, "zoo": Hostile()}))
    torch.save({"state_dict": {}, "zoo": Hostile()}, tmp_path / "evil2.ckpt")
    for name in ("evil.ckpt", "evil2.ckpt"):
        with pytest.raises(ZooError, match="refused"):
            reading.read_checkpoint(tmp_path / name)
    (tmp_path / "shards.ckpt").mkdir()
    torch.save(
        {"state_dict": {}, "zoo": {"config": {}, "tokenizer": ""}, "parts": 2},
        tmp_path / "shards.ckpt" / "0.pt",
    )
    torch.save({"state_dict": {}, "zoo": Hostile()}, tmp_path / "shards.ckpt" / "1.pt")
    with pytest.raises(ZooError, match=r"refused .*1.pt"):
        reading.read_checkpoint(tmp_path / "shards.ckpt")
    assert not Path("owned").exists()


def test_a_target_in_a_loaded_configuration_is_refused(train: Train) -> None:
    train("run")
    path = Path("run/checkpoints/last.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["zoo"]["config"]["norm"]["_target_"] = "os.system"
    torch.save(checkpoint, path)
    with pytest.raises(ZooError, match="_target_"):
        checkpoint_weights.load_model(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"not a checkpoint at all"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "last.ckpt").write_bytes(content)
    with pytest.raises(ZooError, match=r"damaged|refused"):
        checkpoint_weights.load_model(tmp_path)


@pytest.mark.parametrize(
    "content", [b"not a checkpoint at all", b"Paragraphs of a text", b"PK\x03\x04 cut short"]
)
def test_a_file_that_is_no_checkpoint_is_not_called_hostile(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes.ckpt").write_bytes(content)
    with pytest.raises(ZooError, match=r"notes.ckpt is damaged or not a checkpoint \([^.]*\)$"):
        reading.read_checkpoint(tmp_path / "notes.ckpt")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a,b\n1,2\n", b"step,loss\nx,2\n"])
def test_a_damaged_metrics_file_is_refused_and_kept(train: Train, content: bytes) -> None:
    Path("run").mkdir()
    Path("run/metrics.csv").write_bytes(content)
    with pytest.raises(ZooError, match=r"run/metrics.csv is damaged: rename it"):
        train("run")
    assert Path("run/metrics.csv").read_bytes() == content


@pytest.mark.slow
def test_compiled_trains_as_eager_does_and_its_checkpoint_is_gone_on_with_in_eager(
    train: Train,
) -> None:
    eager, compiled = train("eager"), train("compiled", "trainer.compile=true")
    assert compiled["metrics"]["val/loss"] == pytest.approx(eager["metrics"]["val/loss"], abs=1e-4)
    for name, weight in weights("eager").items():
        torch.testing.assert_close(weights("compiled")[name], weight, rtol=0, atol=1e-4)
    on = train(
        "compiled",
        "trainer.max_steps=12",
        "trainer.compile=false",
        "changing=[trainer]",
        "resume=auto",
    )
    assert on["steps"] == 12
    assert checkpoint_weights.load_model("compiled")[2]["trainer"]["max_steps"] == 12


def test_a_trained_model_is_loaded_and_generates(train: Train) -> None:
    train("run")
    model, tokenizer, _ = checkpoint_weights.load_model("run/checkpoints/last.ckpt")
    expected = {
        name.removeprefix("model."): weight
        for name, weight in weights("run").items()
        if name.startswith("model.")
    }
    assert equal(model.state_dict(), expected)
    prompter = prompting.TextGenerator(config.compose(), model, tokenizer)
    one, other = (prompter.generate("3 times", tokens=20, seed=seed) for seed in (0, 1))
    assert prompter.generate("3 times", tokens=20, seed=0) == one != other
    with pytest.raises(ZooError, match=r"ask for at most 24"):
        prompter.generate("3 times", tokens=25)


def test_a_precision_that_no_gpu_is_there_for_is_refused_before_a_folder_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "no_gpu", lambda: True)
    composed = config.compose(
        ["trainer.accelerator=auto", "trainer.precision=16-mixed", "logger=none"]
    )
    with pytest.raises(ZooError, match=r"16-mixed.*give trainer\.precision=bf16-mixed"):
        preflight.refuse_impossible(composed)


def test_a_resumed_run_does_not_print_its_last_row_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch: Any = SimpleNamespace(row={})
    lines = console.LogPrinter(watch)
    trainer, module = (
        SimpleNamespace(global_step=3, max_steps=6),
        SimpleNamespace(config={"trainer": {"compile": False}}),
    )
    watch.row = {"train/loss": 1.0, "train/tokens_per_second": 5.0}  # restored from the checkpoint
    lines.on_train_start(trainer, module)
    lines.on_train_batch_end(trainer, module)
    assert capsys.readouterr().out == ""
    watch.row = {"train/loss": 2.0, "train/tokens_per_second": 5.0}
    lines.on_train_batch_end(trainer, module)
    assert "train/loss 2.0000" in capsys.readouterr().out


@pytest.mark.parametrize(
    "more", [("trainer.accelerator=cpu",), ("trainer.accelerator=auto",), ("trainer=fsdp_sim",)]
)
def test_a_precision_that_would_be_replaced_by_another_is_refused(
    train: Train, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setattr(gpus, "no_gpu", lambda: True)
    with pytest.raises(
        ZooError, match=r"trainer\.precision=16-mixed.*: give trainer\.precision=bf16-mixed"
    ):
        train("run", *more, "trainer.precision=16-mixed")
    assert not Path("run/metrics.csv").exists()


def test_whatever_precision_lightning_chooses_instead_is_refused(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own rules may change; what config.yaml says is what runs."""
    chosen = lightning.Trainer
    monkeypatch.setattr(
        lightning, "Trainer", lambda **given: chosen(**given | {"precision": "bf16-mixed"})
    )
    with pytest.raises(ZooError, match=r"trainer\.precision=32-true would run as bf16-mixed here"):
        train("run")


def test_torchrun_processes_beyond_those_configured_are_refused(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(
        ZooError, match=r"torchrun has started 4 processes, but trainer.devices=1 .* ask for 1"
    ):
        train("run")


def test_threads_are_those_asked_for_whatever_lightning_sets(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sets them where it starts processes: cores by processes, beside what the run was told."""
    from lightning.pytorch.strategies import Strategy

    seen: list[int] = []
    before = Strategy.setup_environment

    def launched(self: Any) -> None:
        torch.set_num_threads(1)
        before(self)

    monkeypatch.setattr(Strategy, "setup_environment", launched)
    when(2, lambda trainer: seen.append(torch.get_num_threads()), monkeypatch)
    try:
        train("run", "trainer.threads=2")
    finally:
        torch.set_num_threads(1)
    assert seen == [2]
