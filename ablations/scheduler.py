"""The runs of a plan, through whichever launcher: each once, whoever is stopped, fails, or works on the same study beside."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ablations import specification
from ablations.outcomes import outcome
from ablations.plan import Job, Plan, points
from ablations.progress import Watch
from zoo import config as configuration
from zoo import registry, train
from zoo.config.overrides import typed
from zoo.errors import ZooError, first_line
from zoo.tracking import provenance, run_folder, status
from zoo.utils import files as atomic_files
from zoo.utils import locks

BUSY = "busy"  # another process has this job
current: Plan | None = None  # that Hydra's sweeper is to run


def job(composed: DictConfig) -> str:
    """One job of Hydra's: gives how it ended, or `busy`. Never raises but when asked to stop, so that the rest goes on."""
    configuration.discover()
    folder = Path(HydraConfig.get().runtime.output_dir)
    with claimed(folder) as mine:
        if not mine:
            return BUSY
        if (ended := status.of(folder)) in status.SETTLED:
            return ended
        with (
            (folder / "log.txt").open("a", encoding="utf-8") as log,
            contextlib.redirect_stdout(log),
        ):
            try:
                train.job(composed)
            except Exception as error:
                ended = status.of(folder)
                if ended not in status.SETTLED and not isinstance(error, ZooError):
                    traceback.print_exc(file=log)
                if ended not in status.ENDED:  # it failed before it could record that
                    summary = atomic_files.read_json(folder / "summary.json")
                    told = {
                        "status": status.FAILED,
                        "error": f"{type(error).__name__}: {first_line(error)}",
                    }
                    atomic_files.write_json(folder / "summary.json", summary | told)
        return status.of(folder)


@contextlib.contextmanager
def claimed(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Whether this process has the job, and no other; a claim is gone with its process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with locks.locked(folder / ".job", wait) as ours:
        yield ours


def batches() -> Iterator[list[Job]]:
    """What the sweeper is to run: one step of each arm, then what tunes, then what counts; without what is settled."""
    if current is None:
        raise ZooError(
            "hydra/sweeper=zoo_study runs studies only: python -m ablations.run study=NAME"
        )
    first = _pending(current, current.first_steps())
    if first:
        yield first
        for job in first:
            shutil.rmtree(current.folder / job.folder / "checkpoints", ignore_errors=True)
        if broken(current):
            return
    trials = current.trials()
    if trials:
        yield _pending(current, trials)
    jobs = current.jobs(tuned(current) if trials else None)
    if trials:  # else they were looked at before the first run
        _refuse_others(current, jobs)
    yield _pending(current, jobs)


def broken(plan: Plan) -> str:
    """Which arms fail at their first step, and why; empty where none does."""
    told = []
    for job in plan.first_steps():
        folder = plan.folder / job.folder
        if status.of(folder) == status.FAILED:
            told.append(
                f"arm {job.arm} fails at its first step: {atomic_files.read_json(folder / 'summary.json').get('error')}"
                f" ({folder / 'log.txt'})"
            )
    return "; ".join(told)


def _pending(plan: Plan, jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if status.of(plan.folder / job.folder) not in status.SETTLED]


def tuned(plan: Plan) -> dict[str, dict[str, Any]]:
    """The point at which each arm was best over the tuning seeds; the whole search goes into study.json.

    A point at which a run diverged or failed is never chosen; where all are such, none is, and the arm runs as it is.
    """
    measure, grid = plan.study.measure, points(plan.study)
    scores: dict[str, list[list[float | None]]] = {
        arm.name: [[] for _ in grid] for arm in plan.arms
    }
    for job in plan.trials():
        summary = atomic_files.read_json(plan.folder / job.folder / "summary.json")
        ended = outcome(job.arm, job.seed, summary, measure)
        scores[job.arm][job.trial or 0].append(
            ended.value if ended.status == status.FINISHED else None
        )
    chosen, told = {}, {}
    for arm, found in scores.items():
        means = [_mean(values) for values in found]
        reached = [
            (mean if measure.lower_is_better else -mean, place)
            for place, mean in enumerate(means)
            if mean is not None
        ]
        point = grid[min(reached)[1]] if reached else {}
        axes = plan.study.tune.grid if plan.study.tune else {}
        edges = [
            option
            for option, value in point.items()
            if value in (axes[option][0], axes[option][-1])
        ]
        chosen[arm] = point
        told[arm] = {"point": point, "at_the_edge": edges, "points": grid, "means": means}
    with specification.writing(plan.folder) as content:
        atomic_files.write_json(plan.folder / "study.json", content | {"tuned": told})
    return chosen


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _refuse_others(plan: Plan, jobs: Sequence[Job]) -> None:
    """A folder that holds a run is only used for the same configuration."""
    for job in jobs:
        folder = plan.folder / job.folder
        changed = (
            run_folder.changed(job.config, folder) if (folder / "config.yaml").exists() else []
        )
        if changed:
            raise ZooError(
                f"{folder} holds a run of another configuration (different: {', '.join(changed)}): delete it, or"
                " choose another hydra.sweep.dir"
            )


def prepare(plan: Plan) -> list[str]:
    """Refuse a folder of other runs, write study.json, and say which finished runs are used and what differs in them."""
    notes, reused = [], 0
    others: Counter[str] = Counter()
    jobs = [*plan.trials(), *([] if plan.study.tune else plan.jobs())]
    now: dict[str, Any] = {}
    specification.foreseen(plan, specification.read(plan.folder))
    _refuse_others(plan, jobs)
    for job in jobs:
        folder = plan.folder / job.folder
        summary = atomic_files.read_json(folder / "summary.json")
        if summary.get("status") in status.SETTLED:
            reused += 1
            others.update(_otherwise(job, summary, now))
        elif summary.get("status") == status.FAILED:
            atomic_files.write_json(folder / "summary.json", summary | {"status": status.WAITING})
    if reused:
        notes.append(f"{reused} of {len(jobs)} runs are done already and are used")
    notes += [
        f"{number} of these by {what}: delete their folders to run them again"
        for what, number in others.items()
    ]
    if first := plan.first_steps():
        notes.append(
            f"one step of {'each arm' if len(first) == len(plan.arms) else f'{len(first)} arms'} is tried first"
        )
    return notes + specification.record(plan)


def _otherwise(job: Job, summary: Mapping[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """In what a finished run differs from one made now: the code, the packages, the data."""
    if not now:
        now.update(sha=provenance.git_sha(), versions=provenance.versions())
    if summary.get("git_sha") != now["sha"]:
        yield f"another version of the code ({str(summary.get('git_sha'))[:12]}, now {str(now['sha'])[:12]})"
    before, files = (
        (summary.get("sources") or {}).get("files") or {},
        provenance.sources(job.config)["files"],
    )
    for module in sorted(before.keys() & files.keys()):
        if before[module] != files[module]:
            yield f"another source of {module}"
    versions = (summary.get("versions") or {}).items()
    if packages := [
        f"{name} {version}" for name, version in versions if now["versions"].get(name) != version
    ]:
        yield f"other packages ({', '.join(packages)})"
    data = repr(job.config["data"])
    if data not in now:
        now[data] = registry.build("data", job.config["data"]).fingerprint()
    fingerprint = (summary.get("data") or {}).get("fingerprint", now[data])
    if fingerprint != now[data]:
        yield f"other data (fingerprint {fingerprint[:12]}, now {now[data][:12]})"


def execute(plan: Plan, words: Sequence[str], flags: Sequence[str]) -> int:
    """Run what is left of a plan through Hydra's launcher; gives the number of jobs that failed."""
    global current
    import hydra

    from zoo.config import CONF

    current = plan
    sweep = [
        "hydra/sweeper=zoo_study",
        f"hydra.sweep.dir={typed(str(plan.folder))}",
        "hydra.output_subdir=null",
        "hydra.job.name=train",
        "hydra.hydra_logging.root.level=WARNING",
    ]
    argv = sys.argv
    with Watch(plan):
        try:
            sys.argv = [argv[0], *words, *sweep, "--multirun", *flags]
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
        finally:
            sys.argv, current = argv, None
    if told := broken(plan):
        raise ZooError(
            f"{told}: no run has begun; mend it, or leave it out, and run the same command again"
        )
    folders = [plan.folder / job.folder for job in [*plan.trials(), *plan.jobs()]]
    return sum(status.of(folder) not in status.SETTLED for folder in folders)
