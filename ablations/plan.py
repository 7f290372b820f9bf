"""What a study will do, said before it does it: arms, budgets, hours, and the power to see what it looks for."""

from __future__ import annotations

import copy
import itertools
import random
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ablations import design
from ablations.design import Arm
from ablations.matching import match, put
from ablations.stats import FEW_DOCUMENTS, power
from ablations.study import HASHING, Study, merged
from zoo import registry
from zoo.config import Config
from zoo.config.overrides import typed
from zoo.cost import BACKWARD_AND_FORWARD
from zoo.errors import ZooError
from zoo.tracking import status
from zoo.utils import files, tables

QUIET = {"trainer.progress": "false", "trainer.sample": "false"}
SHORT = 100  # steps of a run that is tried out as soon by itself
JUDGED = "judged"  # W&B's tag of the runs that count, beside those that tune
SPARE = (
    "tokens",
    "FLOPs per token",
    "active",
    "parameters",
)  # of the plan's columns, what goes first where there is no room
LARGEST_READ = 100 << 20  # bytes of text that are read to count its documents
LARGEST_TIMED = 50_000_000  # parameters of a model whose step is tried out for its time


@dataclass(frozen=True)
class Job:
    """One run: of an arm, with a seed, in a folder below the study's."""

    arm: str
    seed: int
    folder: str
    words: list[str]
    config: Config
    trial: int | None = None  # a point of the tuning grid

    def overrides(self) -> list[str]:
        return [*self.words, f"seed={self.seed}", f"hydra.sweep.subdir='{self.folder}'"]


@dataclass(frozen=True)
class Plan:
    study: Study
    folder: Path
    arms: list[Arm]
    configs: list[Config]
    costs: list[dict[str, int]]

    def jobs(self, tuned: Mapping[str, Mapping[str, Any]] | None = None) -> list[Job]:
        """The runs that count: seed by seed, so that a study that is stopped has as much of each arm.

        `tuned` gives the options that were chosen for each arm.
        """
        return [
            self._job(
                arm, config, seed, f"{arm.folder}/seed_{seed}", (tuned or {}).get(arm.name, {})
            )
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
        """One step of each arm whose runs have many, and of which none has come as far: what is broken shows at once."""
        return [
            self._first_step(arm, config)
            for arm, config in zip(self.arms, self.configs, strict=True)
            if config["trainer"]["max_steps"] > SHORT and not any(self._came_far(arm.name))
        ]

    def _came_far(self, arm: str) -> Iterator[bool]:
        for job in [*self.trials(), *self.jobs()]:
            place = self.folder / job.folder
            if job.arm == arm:
                yield (status.of(place) in status.SETTLED or (place / "checkpoints").exists())

    def _first_step(self, arm: Arm, config: Config) -> Job:
        job = self._job(arm, config, self.study.seeds[0], f"{arm.folder}/first_step", {})
        told = [word for word in job.words if not word.startswith("logger")]
        return replace(
            job,
            words=merged(told, ["trainer.max_steps=1", "trainer.watch_every=null", "logger=none"]),
        )

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
        words = merged(
            [f"{option}={value}" for option, value in QUIET.items()],
            arm.words,
            [f"{option}={typed(value)}" for option, value in options.items()],
            ["resume=auto"],
        )
        if config["logger"]["name"] == "wandb":
            names = self._names(config["logger"], arm.name, folder, trial)
            changed["logger"] |= names
            words += [f"logger.{key}={typed(name)}" for key, name in names.items()]
        put(changed, "resume", "auto")
        return Job(arm.name, seed, folder, words, changed, trial)

    def _names(
        self, given: Mapping[str, Any], arm: str, folder: str, trial: int | None
    ) -> dict[str, Any]:
        """What a run is called in W&B: grouped by study and arm, by the names that its folder has."""
        names = {"group": self.folder.name, "job_type": arm, "label": folder}
        tags = [
            *given["tags"],
            design.safe(self.study.name)[:64],
            JUDGED if trial is None else "tuning",
        ]
        return {key: name for key, name in names.items() if given[key] is None} | {
            "tags": list(dict.fromkeys(tags))
        }

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


def make(
    study: Study,
    folder: Path | None = None,
    notes: list[str] | None = None,
    extra: Sequence[str] = (),
) -> Plan:
    """Everything that can be refused is refused here, by name; `extra` words help to compose, and are not of the study."""
    told = notes if notes is not None else []
    if study.tune and set(study.tune.seeds) & set(study.seeds):
        raise ZooError(
            "study: tune.seeds must not be among seeds: what is chosen on a seed is not judged on it"
        )
    found = design.arms(study)
    arms, configs, costs = match(study, found, design.checked(study, found, extra))
    for option in study.tune.grid if study.tune else ():
        for arm, config in zip(arms, configs, strict=True):
            group, _, name = option.rpartition(".")
            if name not in config.get(group, {}):
                raise ZooError(f"arm {arm.name}: tune.grid: no option {option}")
    if len(study.seeds) < 5:
        told.append(
            f"{len(study.seeds)} seed{'s' * (len(study.seeds) > 1)} an arm: exploratory. Differences may be chance,"
            " and no winner is named; five or more decide."
        )
    if study.match == "seconds":
        told.append("match: seconds is of this machine: reported for each arm, not solved for.")
    return Plan(
        study,
        folder or Path("studies") / f"{design.safe(study.name)}_{study.key[:8]}",
        arms,
        configs,
        costs,
    )


def points(study: Study) -> list[dict[str, Any]]:
    """The points of the tuning grid, the same for each arm; where there are more than trials, some by chance."""
    assert study.tune is not None
    grid = [
        dict(zip(study.tune.grid, values, strict=True))
        for values in itertools.product(*study.tune.grid.values())
    ]
    number = study.tune.trials
    return (
        grid
        if number is None or number >= len(grid)
        else random.Random(repr(study.tune)).sample(grid, number)
    )


def time_left(plan: Plan) -> tuple[int, float | None, str]:
    """How many runs are left, the seconds that these take (None where nobody knows), and where that is known from.

    As long as those that have finished, by the work of each; or of the time of a step, with a second for a run's start and end.
    """
    works = {
        arm.name: _work(config, cost)
        for arm, config, cost in zip(plan.arms, plan.configs, plan.costs, strict=True)
    }
    runs = [
        (works[job.arm], files.read_json(plan.folder / job.folder / "summary.json"))
        for job in [*plan.trials(), *plan.jobs()]
    ]
    left = [work for work, run in runs if run.get("status") not in status.SETTLED]
    done = [
        (work, told)
        for work, run in runs
        if run.get("status") == status.FINISHED
        and (told := run.get("wall_seconds", run.get("seconds")))
    ]
    if done:
        pace = sum(seconds for _, seconds in done) / sum(work for work, _ in done)
        return len(left), sum(left) * pace, f"{len(done)} finished runs"
    if not left or plan.costs[0]["parameters"] > LARGEST_TIMED:
        return len(left), None, "no run has finished"
    return len(left), sum(left) / _timed(plan) + len(left), "one step of the baseline, tried out"


def _work(config: Config, cost: Mapping[str, int]) -> float:
    """The FLOPs of a run, its evaluations with it; a byte of text counts as a token."""
    evaluations = -(-config["trainer"]["max_steps"] // config["trainer"]["eval_every"])
    validation = _splits(config["data"])
    forward = cost["flops_per_token"] / BACKWARD_AND_FORWARD
    return cost["training_flops"] + (evaluations * validation[1] * forward if validation else 0.0)


def _timed(plan: Plan) -> float:
    import torch

    from zoo import cost, models

    config = plan.configs[0]
    graphics = torch.cuda.is_available() and config["trainer"]["accelerator"] != "cpu"
    model = models.build(config, device="cuda" if graphics else "cpu")
    shape = (min(config["loader"]["batch_size"], 16), config["loader"]["length"])
    given = cost.inputs(
        model, torch.zeros(shape, dtype=torch.long, device="cuda" if graphics else "cpu")
    )
    fastest, threads = float("inf"), torch.get_num_threads()
    torch.set_num_threads(config["trainer"]["threads"] or threads)
    for _ in range(5):
        begun = time.perf_counter()
        model(**given).float().logsumexp(-1).sum().backward()
        if graphics:
            torch.cuda.synchronize()
        fastest = min(fastest, time.perf_counter() - begun)
    torch.set_num_threads(threads)
    return plan.costs[0]["flops_per_token"] * shape[0] * shape[1] / fastest


def show(plan: Plan, console: Console, notes: Sequence[str] = ()) -> None:
    """Print the plan: what is run, what that costs, and what it can tell."""
    study, costs = plan.study, plan.costs
    console.print(
        Text(f"Study {study.name}", style="bold"),
        Text(study.question),
        f"[dim]{plan.folder}[/dim]",
        sep="  ",
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("arm", "what differs", "matched"):
        table.add_column(column, overflow="fold")
    experts = any(cost["active"] != cost["parameters"] for cost in costs)
    for column in ("parameters", *(("active",) if experts else ()), "FLOPs per token", "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for arm, cost in zip(plan.arms, costs, strict=True):
        numbers = [
            _against(cost[unit], costs[0][unit])
            for unit in ("parameters", *(("active",) if experts else ()))
        ]
        numbers += [
            _against(cost["flops_per_token"], costs[0]["flops_per_token"]),
            f"{cost['tokens']:,}",
        ]
        words = " ".join(arm.differs or arm.levels.values())
        table.add_row(Text(arm.name), Text(words), Text(arm.matched or "–"), *numbers)
    tables.show(table, console, SPARE)
    jobs = len(plan.jobs()) + len(plan.trials())
    left, seconds, source = time_left(plan)
    runs = f"{len(plan.arms)} arms × {len(study.seeds)} seeds"
    if study.tune:
        runs += f", after tuning each at {len(points(study))} points × {len(study.tune.seeds)} seeds: {jobs} runs"
    total = sum(cost["tokens"] for cost in costs) / len(costs) * jobs
    if not left:
        hours = "all of them done"
    else:
        done = f"{left} of {jobs} runs left, " * (left < jobs)
        hours = (
            f"{done}about {duration(seconds)} ({source})"
            if seconds is not None
            else f"{done}time unknown ({source})"
        )
    unmatched = study.match in (
        "none",
        "seconds",
    )  # seconds are known afterwards, and of one machine
    budgets = "budgets not matched" if unmatched else f"budgets matched by {study.match}"
    console.print(Text(f"{runs}; {total:,.0f} tokens; {hours}; {budgets}"))
    console.print(Text(_power(study, len(plan.arms) - 1)))
    console.print(Text(_validation(plan.configs[0])))
    console.print(Text(f"{study.metric}, specification {study.hash[:16]}"))
    for note in notes:
        console.print(Text(note, style="yellow"))


def _power(study: Study, comparisons: int) -> str:
    if study.margin is None:
        return "no margin is stated: nothing can be called equivalent"
    if len(study.seeds) < 2:
        return "power: none, of one seed"
    if study.metric != Study.metric and study.sd == Study.sd:  # which is of the loss, in its unit
        return f"power is not known: give sd, how much {study.metric} varies over seeds, in {study.measure.unit}"
    low, high = (
        power(len(study.seeds), comparisons, study.sd, rho, study.margin) for rho in (0.0, 0.2)
    )
    return (
        f"power to see a difference of the margin, {study.margin:g}: {low:.0%} to {high:.0%} (sd {study.sd:g} over seeds,"
        f" which pairs share 0 to 20 % of; {comparisons} comparison{'s' * (comparisons > 1)})"
    )


def _validation(config: Config) -> str:
    """How many documents a run is judged on. Raises ZooError for text that cannot be read."""
    known = _splits(config["data"])
    if known is None:
        return f"documents of the validation: not counted before the first run, as the text is above {LARGEST_READ >> 20} MB"
    number = known[0]
    few = (
        f": too few to speak for others (fewer than {FEW_DOCUMENTS}), raise data.val_fraction or give more"
        if number < FEW_DOCUMENTS
        else ""
    )
    return f"validated on {number:,} document{'s' * (number != 1)}{few}"


_read: dict[str, tuple[int, int] | None] = {}


def _splits(data: Config) -> tuple[int, int] | None:
    """Documents and bytes of the validation; None where the text is too large to be read for that."""
    key = f"{data} {LARGEST_READ}"
    if key not in _read:
        source = registry.build("data", data)
        large = sum(path.stat().st_size for _, path in source.files(Counter())) > LARGEST_READ
        splits = None if large else source.splits()
        _read[key] = splits and (sum(1 for _ in splits.documents["val"]), splits.bytes["val"])
    return _read[key]


def _against(value: int, base: int) -> str:
    return (
        f"{value:,}" if value == base or not base else f"{value:,} ({(value - base) / base:+.1%})"
    )


def duration(seconds: float) -> str:
    """Seconds in the unit a person would choose."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def reseeded(study: Study, folder: Path) -> str | None:
    """Another folder that holds this study with other seeds or another margin, where there is one."""
    for place in sorted(folder.parent.glob(f"{design.safe(study.name)}_*/study.json")):
        told = files.read_json(place).get("study")
        if (
            place.parent != folder
            and told
            and told | {"seeds": study.seeds, "margin": study.margin} == asdict(study)
        ):
            return (
                f"{place.parent} holds this study with the seeds {told['seeds']} and the margin {told['margin']}: with"
                f" {shlex.quote(f'hydra.sweep.dir={typed(str(place.parent))}')} its runs are used, and the report says that"
                " this is a second look"
            )
    return None
