"""Decide from a run's folder whether the run in it may be resumed, has finished, or is another
one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from zoo import config as configuration
from zoo.config import Config
from zoo.config import overrides as override_grammar
from zoo.errors import ZooError
from zoo.tracking import status


def refuse_other_run(config: Config, folder: Path, option: str = "hydra.run.dir") -> None:
    """Refuse a folder that holds a run, unless this configuration resumes that very run."""
    if not (folder / "config.yaml").exists():
        return
    if config["resume"] != "auto":
        raise ZooError(
            f"{folder} already holds a run: resume it by resume=auto, or choose another {option}"
        )
    different = changed(config, folder)
    if different:
        raise ZooError(
            f"{folder} holds a run of another configuration (different: {', '.join(different)}):"
            f" choose another"
            f" {option}, or resume with what you change by naming it:"
            f" changing=[{','.join(different)}]"
        )


def refuse_other_runs(configs: Sequence[Config], overrides: Sequence[str]) -> None:
    """Refuse folders of a sweep that hold other runs, before its first job.

    Where hydra.sweep.subdir names the folders, each is looked at when its job starts.
    """
    folder = override_grammar.given("hydra.sweep.dir", overrides)
    if folder is None or override_grammar.given("hydra.sweep.subdir", overrides) is not None:
        return
    for number, config in enumerate(configs):
        refuse_other_run(config, Path(folder) / str(number), "hydra.sweep.dir")


def changed(config: Config, folder: Path) -> list[str]:
    """Return the keys in which a folder's run differs.

    Raises ZooError where its configuration cannot be read.
    """
    stored: Any = None
    with contextlib.suppress(YAMLError, OmegaConfBaseException, ValueError, OSError):
        stored = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    if not stored or not isinstance(stored, dict):
        raise ZooError(
            f"{folder / 'config.yaml'} is damaged: rename {folder} to start anew, or choose"
            f" another hydra.run.dir"
        )
    return configuration.changed(config, {str(key): value for key, value in stored.items()})


def newest_unfinished(config: Config, runs: Path) -> Path | None:
    """Return the newest run of this very configuration that has not finished."""
    stored = sorted(runs.glob("*/config.yaml"), key=_modified, reverse=True)
    for folder in (path.parent for path in stored):
        try:
            if not is_finished(config, folder) and not changed(config, folder):
                return folder
        except ZooError as error:
            print(f"passed over: {error}")
    return None


def _modified(path: Path) -> float:
    return path.lstat().st_mtime


def is_finished(config: Config, folder: Path) -> bool:
    """Whether a resumed run has nothing left to do; one that is changed, if by name, has."""
    if config["resume"] != "auto" or status.of(folder) != status.FINISHED:
        return False
    return not changed({**config, "changing": []}, folder)


def requeued() -> bool:
    """Whether Slurm started this job before: it then resumes without being asked to."""
    return int(os.environ.get("SLURM_RESTART_COUNT", 0)) > 0
