"""What goes wrong around a run: nothing that was there is lost, a sentence says what to do, and
the run goes on to the bit.
"""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from tests.helpers.runs import Hostile, Train, equal, in_shards, losses, summary, weights, when
from tests.helpers.wandb_files import read_wandb
from zoo import config, errors, generate
from zoo.checkpoints import reading
from zoo.checkpoints import weights as checkpoint_weights
from zoo.errors import ZooError
from zoo.launch.run_spec import RunSpec
from zoo.tracking import metrics_file, run_folder
from zoo.training import runner
from zoo.training.fsdp import Sharded

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Same = Callable[[str], bool]
TABLE = Path(__file__).parents[2] / "docs" / "bad_days.md"


UNDISTURBED: dict[str, Any] = {}


@pytest.fixture
def undisturbed(train: Train) -> Same:
    """Whether a run's folder holds what that of a run without a bad day does."""
    if not UNDISTURBED:
        train("undisturbed")
        UNDISTURBED.update(weights=weights("undisturbed"), losses=losses("undisturbed"))
    return lambda folder: (
        equal(UNDISTURBED["weights"], weights(folder)) and losses(folder) == UNDISTURBED["losses"]
    )


@pytest.fixture
def train(train: Train) -> Train:
    return lambda folder, *words: train(folder, "trainer.sample=false", *words)


def whole(folder: Path | str) -> dict[str, Any]:
    """Every file of a run that can be read, read."""
    files = [
        path
        for path in Path(folder).rglob("*")
        if path.suffix in (".yaml", ".json", ".csv", ".ckpt")
    ]
    for path in files:
        reading.read_checkpoint(path) if path.suffix == ".ckpt" else OmegaConf.load(
            path
        ) if path.suffix == ".yaml" else None
    return {path.name: path.read_bytes() for path in files}


class Full:
    """A disk that is full from the n-th write of a file on, of which half still finds room."""

    def __init__(self, name: str, nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.left = name, nth
        self.real = os.fsync
        monkeypatch.setattr(os, "fsync", self.write)

    def write(self, descriptor: int) -> None:
        if f".{self.name}." in os.readlink(f"/proc/self/fd/{descriptor}"):
            self.left -= 1
            if not self.left:
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.real(descriptor)


@pytest.mark.parametrize(
    ("name", "nth"),
    [
        ("last.ckpt", 2),
        ("best.ckpt", 1),
        ("metrics.csv", 3),
        ("summary.json", 4),
        ("config.yaml", 1),
    ],
)
def test_a_disk_that_fills_up_costs_nothing_that_was_there(
    train: Train, undisturbed: Same, monkeypatch: pytest.MonkeyPatch, name: str, nth: int
) -> None:
    with monkeypatch.context() as patch:
        Full(name, nth, patch)
        with pytest.raises(OSError, match=rf"No space left.*{name}"):
            train("run")
    whole("run")
    assert not list(Path("run").rglob("*.tmp"))
    assert train("run", "resume=auto")["status"] == "finished"
    assert undisturbed("run")


def test_a_full_disk_is_one_sentence_that_names_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(
            SystemExit, match=r"^error: run/last.ckpt \(No space left on device\): free some$"
        ),
        errors.cli_errors(),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run/last.ckpt")


@pytest.mark.slow
def test_a_disk_that_is_really_full_is_one_sentence_and_the_run_goes_on(
    command: Command, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "none", disk], check=False, capture_output=True
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        words = (f"hydra.run.dir={disk}/run", "trainer.checkpoint_every=2")
        full = command(*words)
        assert full.returncode == 1
        assert re.fullmatch(
            r"error: .*/run/checkpoints/\w+.ckpt \(No space left on device\): free some",
            full.stderr.strip(),
        )
        assert summary(disk / "run")["status"] in ("failed", "running")
        whole(disk / "run")
        subprocess.run(["mount", "-o", "remount,size=10m", disk], check=True)
        done = command(*words, "resume=auto")
        assert done.returncode == 0, done.stderr
        assert summary(disk / "run")["status"] == "finished"
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    "harm", ["cut", "flipped", "empty", "an empty folder", "without its state"]
)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    train: Train, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    words = ("trainer.checkpoint_every=2",)
    train("run", *words)
    expected, rows = weights("run"), losses("run")
    last = Path("run/checkpoints/last.ckpt")
    stateless, content = io.BytesIO(), bytearray(last.read_bytes())
    torch.save({**torch.load(last, weights_only=True), "optimizer_states": None}, stateless)
    content[len(content) // 2] ^= 1
    harmed = {
        "cut": content[:1000],
        "flipped": content,
        "empty": b"",
        "without its state": stateless.getvalue(),
    }
    if harm in harmed:
        last.write_bytes(harmed[harm])
    else:
        last.unlink()
        last.mkdir()
    told = train("run", *words, "resume=auto")
    for said in (caplog.text, told["note"]):
        assert re.search(
            r"last.ckpt is damaged.*: resuming from the one before, run/checkpoints/previous.ckpt",
            said,
        )
    assert equal(expected, weights("run"))
    assert losses("run") == rows
    assert Path("run/checkpoints/last.damaged").exists()


@pytest.mark.parametrize("gone", [None, "0.pt", "1.pt", "all"])
def test_so_is_one_of_shards_of_which_a_part_is_missing(train: Train, gone: str | None) -> None:
    words = ("trainer.checkpoint_every=2",)
    train("run", *words)
    expected, last = weights("run"), Path("run/checkpoints/last.ckpt")
    folder = in_shards(last, 2)
    assert equal(expected, reading.read_checkpoint(last)["state_dict"])
    if gone == "all":
        shutil.rmtree(folder)
    elif gone is not None:
        (folder / gone).unlink()
    told = train("run", *words, "resume=auto")
    assert ("last.ckpt" in (told.get("note") or "")) == (gone is not None)
    assert equal(expected, reading.read_checkpoint(last)["state_dict"])


def test_a_flipped_bit_in_a_shard_ends_all_processes_and_the_one_before_is_next(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks at its share of the parts, so that none need read them all; here the second of
    two finds it.
    """
    words = ("trainer.checkpoint_every=2",)
    train("run", *words)
    expected, last = weights("run"), Path("run/checkpoints/last.ckpt")
    part = in_shards(last, 2) / "1.pt"
    agreed = []

    class Second(Sharded):
        global_rank, world_size, is_global_zero = 1, 2, True  # type: ignore[assignment]
        lightning_module = SimpleNamespace(model=torch.nn.Module())  # type: ignore[assignment]

        def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
            agreed.append(decision)
            return decision

    assert Second(2).load_checkpoint(last)["global_step"] == 8
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(
        reading.Damaged,
        match=r"a checksum differs. It is last.damaged now, so that resume=auto takes",
    ):
        Second(2).load_checkpoint(last)
    assert agreed == [True, True, False], "whole and finite; not whole"
    assert train("run", *words, "resume=auto")["status"] == "finished"
    assert equal(expected, weights("run"))


def test_where_all_but_the_best_are_damaged_the_run_goes_on_from_that_and_else_is_refused(
    train: Train,
) -> None:
    words = (
        "trainer.max_steps=6",
        "trainer.checkpoint_every=1",
    )  # the best is of step 4, the evaluation before the last
    train("run", *words)
    expected, rows = weights("run"), losses("run")
    places = [Path(f"run/checkpoints/{name}.ckpt") for name in ("last", "previous", "best")]
    for place in places[:2]:
        place.write_bytes(b"")
    assert "best.ckpt" in train("run", *words, "resume=auto")["note"]
    assert equal(expected, weights("run"))
    assert losses("run") == rows
    for place in places:
        place.write_bytes(b"")
    with pytest.raises(
        ZooError,
        match=r"last.ckpt is damaged.*best.ckpt is damaged.*: there is no other, so delete",
    ):
        train("run", *words, "resume=auto")


def test_a_checkpoint_of_a_newer_version_is_refused_and_kept(train: Train) -> None:
    train("run")
    for name in ("best", "last"):
        checkpoint = torch.load(f"run/checkpoints/{name}.ckpt", weights_only=True)
        checkpoint["zoo"]["format"] += 1
        torch.save(checkpoint, f"run/checkpoints/{name}.ckpt")
    before = Path("run/checkpoints/last.ckpt").read_bytes()
    for read in (lambda: train("run", "resume=auto"), lambda: checkpoint_weights.load_model("run")):
        with pytest.raises(
            ZooError, match=r"ckpt is of format 2, which a newer version .* this one reads format 1"
        ):
            read()
    assert Path("run/checkpoints/last.ckpt").read_bytes() == before


def test_a_hostile_last_checkpoint_is_not_passed_over(train: Train) -> None:
    train("run")
    torch.save({"state_dict": {}, "zoo": Hostile()}, "run/checkpoints/last.ckpt")
    with pytest.raises(
        ZooError, match=r"refused .*last.ckpt: it holds more than tensors and plain data"
    ):
        train("run", "resume=auto")
    assert not Path("owned").exists()


def test_a_line_of_metrics_that_was_cut_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,train/loss\n2,5.5\n4,5.25\n12,5.125\n", encoding="utf-8")
    for cut in range(len("\n"), len("12,5.125\n") + 1):
        content = path.read_bytes()
        path.write_bytes(content[:-cut])
        assert list(metrics_file.MetricsFile(path, resume_step=4).rows) == [2, 4]
        path.write_bytes(content)


@pytest.fixture
def powerless() -> Iterator[Callable[[bool], None]]:
    """Root may write anywhere: it can be nobody for a while."""
    root = not os.geteuid()
    yield lambda now: os.seteuid(pwd.getpwnam("nobody").pw_uid if now else 0) if root else None
    if root:
        os.seteuid(0)


def test_a_folder_that_cannot_be_written_is_named_and_left_as_it_was(
    train: Train, words: list[str], powerless: Callable[[bool], None]
) -> None:
    with tempfile.TemporaryDirectory() as name:  # not below a folder that only its owner may enter
        folder = Path(name)
        train(folder)
        before, given = (
            whole(folder),
            config.compose([*words, "trainer.sample=false", "resume=auto"]),
        )
        for place in (folder / "checkpoints", folder):
            place.chmod(0o555)
        (folder / ".lock").chmod(0o444)
        powerless(True)
        with pytest.raises(PermissionError, match=f"Permission denied.*{name}"):
            runner.run(RunSpec(given), folder)
        assert checkpoint_weights.load_model(folder)[2]["seed"] == 0, "it can still be read"
        powerless(False)
        assert whole(folder) == before
        for place in (folder, folder / "checkpoints"):
            place.chmod(0o755)


def test_wandb_that_fails_costs_the_run_nothing(
    train: Train,
    undisturbed: Same,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its process is killed; the next run of this one has it again."""
    from wandb.sdk import wandb_setup

    with monkeypatch.context() as patch:
        when(3, lambda trainer: wandb_setup.singleton()._connection._proc._process.kill(), patch)
        told = train("run", "logger=wandb")
    assert told["status"] == "finished"
    assert told["wandb"] == "lost"
    assert caplog.text.count("W&B failed") == 1
    assert "continues without it, its curves are in metrics.csv" in caplog.text
    assert undisturbed("run")
    assert train("again", "logger=wandb")["wandb"] == "offline"
    (file,) = Path("again/wandb").glob("offline-run-*/*.wandb")
    assert read_wandb(file)[2] == 0


def test_a_wandb_that_does_not_answer_makes_the_run_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    from zoo.tracking import wandb_logger

    began = wandb.init

    def init(mode: str, **about: Any) -> Any:
        if mode == "online":
            raise wandb.errors.CommError("the server is down")
        return began(mode=mode, **about)

    monkeypatch.setattr(wandb, "init", init)
    begun = wandb_logger.begin(config.compose()["logger"], tmp_path, mode="online")
    assert begun.settings.mode == "offline"
    assert "the server is down" in caplog.text
    wandb_logger.finish(0)


def test_a_data_worker_that_is_killed_ends_the_run_with_a_sentence(
    train: Train, undisturbed: Same, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("loader.workers=1", "trainer.checkpoint_every=2")

    def kill(trainer: Any) -> None:
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL, (
            "torch would raise again, in the midst of what follows"
        )
        for child in multiprocessing.active_children():
            child.kill()

    signal.signal(signal.SIGCHLD, lambda *_: None)  # as torch's, of an earlier run of this process
    with monkeypatch.context() as patch:
        when(3, kill, patch)
        with pytest.raises(
            ZooError,
            match=r"a data worker died \(.*\): .*lower loader.workers.*resume=auto",
        ):
            train("run", *words)
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL, (
        "it would raise while the end is told"
    )
    assert summary("run")["status"] == "failed"
    assert train("run", *words, "resume=auto")["status"] == "finished"
    assert undisturbed("run")


def test_runs_of_the_same_second_have_folders_of_their_own() -> None:
    patterns: Any = OmegaConf.to_container(OmegaConf.load(config.CONF / "config.yaml"))
    second = datetime(2026, 11, 29, 12, 0, 0)
    for kind in ("run", "sweep"):
        form = patterns["hydra"][kind]["dir"].split("${now:")[1].rstrip("}")
        names = {(second + timedelta(microseconds=number)).strftime(form) for number in range(1000)}
        assert len(names) == 1000


def test_a_clock_that_jumps_changes_nothing(
    train: Train, undisturbed: Same, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps, real = iter(range(10**6)), time.time
    monkeypatch.setattr(time, "time", lambda: real() + (-1) ** next(jumps) * 1e9)
    with monkeypatch.context() as patch:
        when(5, lambda trainer: 1 / 0, patch)
        with pytest.raises(ZeroDivisionError):
            train("runs/0")
    for name, years in (("config.yaml", -50), ("summary.json", 50)):
        os.utime(f"runs/0/{name}", (real() + years * 3e7,) * 2)
    assert run_folder.newest_unfinished(
        config.compose([*words, "resume=auto"]), Path("runs")
    ) == Path("runs/0")
    told = train("runs/0", "resume=auto")
    assert undisturbed("runs/0")
    assert 0 < told["seconds"] < 1000
    assert told["tokens_per_second"] > 0


@pytest.mark.parametrize(
    "content",
    [
        "!!python/object/apply:os.system ['touch owned']",
        "seed: 0\nnorm: {_target_: os.system, command: touch owned}",
    ],
)
def test_a_hostile_configuration_of_a_run_runs_nothing(words: list[str], content: str) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(ZooError, match=r"is damaged|holds a run of another configuration"):
        run_folder.refuse_other_run(config.compose([*words, "resume=auto"]), Path("run"))
    assert not Path("owned").exists()


def many(keys: int) -> str:
    """An experiment of so many keys: a deep model, no two layers of which are alike."""
    layers = [
        {"attn": {"window": number + 1}, "ffn": {"hidden": 8 + number}}
        for number in range(keys // 4)
    ]
    return yaml.safe_dump({"arch": {"layers": len(layers), "pattern": layers}})


@pytest.fixture
def elsewhere(tmp_path: Path) -> Callable[[str], str]:
    """Words that choose an experiment of this content."""

    def elsewhere(content: str) -> str:
        (tmp_path / "more" / "experiment").mkdir(parents=True)
        (tmp_path / "more" / "experiment" / "big.yaml").write_text(
            f"# @package _global_\n{content}", encoding="utf-8"
        )
        return f"hydra.searchpath=[file://{tmp_path / 'more'}]"

    return elsewhere


def test_ten_thousand_unknown_keys_are_refused_by_the_first(
    elsewhere: Callable[[str], str],
) -> None:
    where = elsewhere(
        yaml.safe_dump({"norm": {f"key{number}": number for number in range(10_000)}})
    )
    with pytest.raises(ZooError, match=r"norm=layer has no option 'key0'"):
        config.compose([where, "experiment=big"])


@pytest.mark.slow
def test_a_configuration_of_ten_thousand_keys_is_written_and_found_again(
    elsewhere: Callable[[str], str], tmp_path: Path
) -> None:
    begun = time.process_time()
    words = [
        elsewhere(many(10_000)),
        "experiment=big",
        "arch.dim=16",
        "arch.heads=2",
        "resume=auto",
    ]
    composed = config.compose(words)
    assert len(composed["arch"]["pattern"]) == 2500
    (tmp_path / "runs" / "0").mkdir(parents=True)
    (tmp_path / "runs" / "0" / "config.yaml").write_text(
        OmegaConf.to_yaml(composed), encoding="utf-8"
    )
    assert run_folder.newest_unfinished(composed, tmp_path / "runs") == tmp_path / "runs" / "0"
    assert time.process_time() - begun < 120


NAMES = ["Ünïcødé 実験 🧪", "spaces and 'quotes' = $HOME", "/".join(["l" * 200] * 12)]


@pytest.mark.parametrize("name", NAMES, ids=["unicode", "quotes", "long"])
def test_a_folder_may_have_any_name(
    train: Train,
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    for folder in (Path(name) / "text", Path(name) / "run"):
        folder.mkdir(parents=True)
    for file in text.iterdir():
        (Path(name) / "text" / f"é{file.name}").write_bytes(file.read_bytes())
    quoted = name.replace("'", "\\'")
    words = (f"data.path='{quoted}/text'", "logger=wandb", "trainer.max_steps=4")
    assert train(f"{name}/run", *words)["status"] == "finished"
    assert list(Path(name, "run", "wandb").glob("offline-run-*/*.wandb"))
    monkeypatch.setattr(sys, "argv", ["generate", f"ckpt={name}/run", "prompt=3 times", "tokens=2"])
    generate.main()
    assert capsys.readouterr().out.splitlines()[-1]


def test_a_folder_named_like_an_address_and_a_pattern_is_gone_on_with(train: Train) -> None:
    folder = "zip::x[1]*?{a,b}"
    train(folder, "trainer.max_steps=4")
    assert train(folder, "trainer.max_steps=8", "changing=[trainer]", "resume=auto")["steps"] == 8
    assert [path.name for path in Path().iterdir()] == [folder]


def rows() -> list[list[str]]:
    lines = [
        line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("|")
    ]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_row_of_the_table_names_a_test_that_there_is() -> None:
    assert len(rows()) > 12
    for case, _, named in rows():
        tests = re.findall(r"`([\w/]+\.py)::(test_\w+)`", named)
        assert len(tests) == named.count("::") > 0, f"{case}: no test"
        for file, name in tests:
            source = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {name}\(", source, re.MULTILINE), (
                f"{case}: no {name} in {file}"
            )
