"""Carry out one job in the folder that Hydra made for it, or show what has finished there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from zoo import config as configuration
from zoo.config.overrides import typed
from zoo.errors import ZooError, command
from zoo.launch.run_spec import RunSpec
from zoo.tracking import run_folder, status
from zoo.utils import distributed, files, system
from zoo.utils.progress import doing

INTERRUPTED = 130  # the exit status of a run that was asked to stop, and can be resumed


def of_a_sweep(composed: DictConfig) -> None:
    """Carry out what Hydra composed for a job, which may be on another machine than the command."""
    configuration.discover()
    hydra, folder = HydraConfig.get(), _folder()
    overrides = list(hydra.overrides.task)
    spec = RunSpec(configuration.finished(composed, overrides), overrides)
    if hydra.mode == RunMode.MULTIRUN:
        if distributed.is_rank_zero() and not run_folder.requeued():
            run_folder.refuse_other_run(spec.config, folder, "hydra.sweep.dir")
        ranks = spec.config["trainer"]["devices"] * spec.config["trainer"]["nodes"]
        if ranks > 1 and not distributed.launched_externally():
            _in_own_process(overrides, folder)
            return
    carry_out(spec)


def carry_out(spec: RunSpec) -> None:
    """Train what has not finished, and show the result; exits with INTERRUPTED where asked to
    stop.
    """
    folder = _folder()
    if run_folder.is_finished(spec.config, folder):
        _show(files.read_json(folder / "summary.json"), folder)
        return
    with doing("loading Lightning"):
        from zoo.training import runner
    from zoo.training.divergence import Diverged
    from zoo.training.signals import Interrupted

    try:
        summary = runner.run(spec, folder)
    except (Diverged, Interrupted) as ending:
        if ending.agreed and not distributed.is_rank_zero():
            sys.exit(0)  # rank 0 says it; Lightning would kill that if another failed
        if isinstance(ending, Diverged):
            raise
        print(f"\ninterrupted ({ending}); resume with: {_resuming(spec.overrides)}")
        sys.exit(INTERRUPTED)
    _show(summary, folder)


def _folder() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)


def _resuming(overrides: Sequence[str]) -> str:
    """The command that resumes an interrupted run."""
    same = [word for word in overrides if word != "resume=auto"]
    of_hydra = HydraConfig.get().overrides.hydra
    places = [word for word in of_hydra if word.startswith("hydra.run.dir=")]
    return command("zoo.train", *same, *places, "resume=auto")


def _in_own_process(overrides: Sequence[str], folder: Path) -> None:
    """Start a job of several ranks as a command of its own.

    Its other ranks run its command again: that of a multirun would start the whole sweep.
    """
    start = [os.environ["ZOO_SCRIPT"]] if "ZOO_SCRIPT" in os.environ else ["-m", "zoo.train"]
    place = f"hydra.run.dir={typed(str(folder.resolve()))}"
    process = subprocess.Popen([sys.executable, *start, *overrides, place])
    before: dict[int, Any] = {}
    with contextlib.suppress(ValueError):  # only a main thread may handle signals
        for number in system.STOP:
            before[number] = signal.signal(number, lambda number, _: process.send_signal(number))
    code = process.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    if code == INTERRUPTED:
        sys.exit(code)
    if code:
        # A rank that died took rank 0 with it, before that could record why.
        if status.of(folder) in (status.MISSING, status.RUNNING):
            summary = files.read_json(folder / "summary.json")
            died = {"status": status.FAILED, "error": "a process of the job died"}
            files.write_json(folder / "summary.json", summary | died)
        raise ZooError(f"the job failed: see {folder / 'summary.json'}")


def _show(summary: dict[str, Any], folder: Path) -> None:
    if distributed.is_rank_zero():
        from zoo.training import result_screen

        result_screen.show(summary, Path(os.path.relpath(folder)))
