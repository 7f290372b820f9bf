"""Give the jobs of a study to a launcher, in the batches that ablations.scheduler makes."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

# Annotations must not be strings here: Hydra loads this file without an entry in sys.modules, where
# a dataclass would look them up.


@dataclass
class ZooStudyConf:
    _target_: str = "hydra_plugins.zoo_study_sweeper.zoo_study_sweeper.ZooStudySweeper"
    # Jobs that the launcher gets at a time; null: all, which submitit_local starts together.
    at_once: int | None = None


ConfigStore.instance().store(
    group="hydra/sweeper", name="zoo_study", node=ZooStudyConf, provider="zoo"
)


class ZooStudySweeper(Sweeper):
    def __init__(self, at_once: int | None = None) -> None:
        self.at_once = at_once
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None
        self.hydra_context: HydraContext | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from ablations import scheduler

        assert self.config is not None
        number, folder = 0, Path(self.config.hydra.sweep.dir)
        for batch in scheduler.batches():
            while batch:
                busy = []
                size = self.at_once or len(batch)
                for start in range(0, len(batch), size):
                    jobs = batch[start : start + size]
                    ended = self._launch([job.overrides() for job in jobs], number)
                    number += len(jobs)
                    busy += [
                        job for job, how in zip(jobs, ended, strict=True) if how == scheduler.BUSY
                    ]
                batch = busy
                for job in batch[:1]:
                    with scheduler.claimed(folder / job.folder, wait=True):
                        pass  # the process that had it has ended

    def _launch(self, jobs: list[list[str]], number: int) -> list[Any]:
        """How the jobs ended. A launcher that gives up on a dead job has started the others."""
        from zoo.errors import first_line

        assert self.launcher is not None
        try:
            return [
                ended.return_value if ended.status == JobStatus.COMPLETED else None
                for ended in self.launcher.launch(jobs, initial_job_idx=number)
            ]
        except Exception as error:
            print(f"launcher: {type(error).__name__}: {first_line(error)}", file=sys.stderr)
            return [None] * len(jobs)
