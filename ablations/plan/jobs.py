"""A plan and its jobs: the compared runs, the tuning runs, and one first step per arm."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ablations import design
from ablations.design import Arm
from ablations.matching import put
from ablations.study import HASHING, Study, merged
from zoo.config import Config
from zoo.config.overrides import typed
from zoo.tracking import status

QUIET = ["trainer.progress=false", "trainer.sample=false"]
SHORT = 100  # steps of a run that is not worth a separate first step
# W&B's tags of the runs that are compared, and of those that tune.
JUDGED = "judged"
TUNING = "tuning"


@dataclass(frozen=True)
class Job:
    """One run: of an arm, with a seed, in a folder below the study's."""

    arm: str
    seed: int
    folder: str
    words: list[str]  # overrides, without the seed
    config: Config
    trial: int | None = None  # a point of the tuning grid

    def overrides(self) -> list[str]:
        return [*self.words, f"seed={self.seed}", f"hydra.sweep.subdir='{self.folder}'"]


@dataclass(frozen=True)
class Plan:
    """A study with its arms, and with the configuration and the cost of each arm."""

    study: Study
    folder: Path
    arms: list[Arm]
    configs: list[Config]
    costs: list[dict[str, int]]

    def jobs(self, tuned: Mapping[str, Mapping[str, Any]] | None = None) -> list[Job]:
        """The runs that are compared, seed by seed, so that a stopped study has all arms alike.

        `tuned` gives the options that tuning chose for each arm.
        """
        chosen = tuned or {}
        return [
            self._job(arm, config, seed, f"{arm.folder}/seed_{seed}", chosen.get(arm.name, {}))
            for seed in self.study.seeds
            for arm, config in zip(self.arms, self.configs, strict=True)
        ]

    def trials(self) -> list[Job]:
        """The runs that tune: the same points and seeds for each arm."""
        if self.study.tune is None:
            return []
        return [
            self._job(arm, config, seed, f"{arm.folder}/tune/{number}/seed_{seed}", point, number)
            for arm, config in zip(self.arms, self.configs, strict=True)
            for number, point in enumerate(points(self.study))
            for seed in self.study.tune.seeds
        ]

    def first_steps(self) -> list[Job]:
        """One step of each arm that has long runs and none under way, to find broken arms early."""
        under_way = {job.arm for job in [*self.trials(), *self.jobs()] if self._under_way(job)}
        return [
            self._first_step(arm, config)
            for arm, config in zip(self.arms, self.configs, strict=True)
            if config["trainer"]["max_steps"] > SHORT and arm.name not in under_way
        ]

    def _under_way(self, job: Job) -> bool:
        """Whether a run is settled or has a checkpoint."""
        folder = self.folder / job.folder
        return status.of(folder) in status.SETTLED or (folder / "checkpoints").exists()

    def _first_step(self, arm: Arm, config: Config) -> Job:
        job = self._job(arm, config, self.study.seeds[0], f"{arm.folder}/first_step", {})
        words = [word for word in job.words if not word.startswith("logger")]
        only_one = ["trainer.max_steps=1", "trainer.watch_every=null", "logger=none"]
        return replace(job, words=merged(words, only_one))

    def _job(
        self,
        arm: Arm,
        config: Config,
        seed: int,
        folder: str,
        options: Mapping[str, Any],
        trial: int | None = None,
    ) -> Job:
        changed = copy.deepcopy(config)
        put(changed, "seed", seed)
        for option, value in options.items():
            put(changed, option, value)
        tuned = [f"{option}={typed(value)}" for option, value in options.items()]
        words = merged(QUIET, arm.words, tuned, ["resume=auto"])
        if config["logger"]["name"] == "wandb":
            labels = self._wandb_labels(config["logger"], arm.name, folder, trial)
            changed["logger"] |= labels
            words += [f"logger.{key}={typed(label)}" for key, label in labels.items()]
        put(changed, "resume", "auto")
        return Job(arm.name, seed, folder, words, changed, trial)

    def _wandb_labels(
        self, logger: Mapping[str, Any], arm: str, folder: str, trial: int | None
    ) -> dict[str, Any]:
        """Group, job type, label and tags of a run in W&B; those that the user set stay."""
        ours = {"group": self.folder.name, "job_type": arm, "label": folder}
        labels: dict[str, Any] = {key: ours[key] for key in ours if logger[key] is None}
        kind = JUDGED if trial is None else TUNING
        tags = [*logger["tags"], design.safe(self.study.name)[:64], kind]
        labels["tags"] = list(dict.fromkeys(tags))
        return labels

    def as_json(self) -> dict[str, Any]:
        """The content of study.json, which the report reads."""
        arms = [asdict(arm) | cost for arm, cost in zip(self.arms, self.costs, strict=True)]
        return {
            "version": HASHING,
            "hash": self.study.hash,
            "study": asdict(self.study),
            "baseline": self.arms[0].name,
            "arms": arms,
            "exploratory": len(self.study.seeds) < 5,
        }


def points(study: Study) -> list[dict[str, Any]]:
    """The points of the tuning grid, the same for each arm: all, or `trials` of them at random."""
    assert study.tune is not None
    grid = [
        dict(zip(study.tune.grid, values, strict=True))
        for values in itertools.product(*study.tune.grid.values())
    ]
    number = study.tune.trials
    if number is None or number >= len(grid):
        return grid
    return random.Random(repr(study.tune)).sample(grid, number)
