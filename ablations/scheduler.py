"""Run each job of a plan exactly once, despite crashes and concurrent workers, by any launcher."""

from __future__ import annotations

import contextlib
import shutil
import statistics
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
from zoo import registry
from zoo.config.overrides import typed
from zoo.errors import ZooError, first_line
from zoo.launch import command_line
from zoo.tracking import provenance, run_folder, status
from zoo.training import job as training_job
from zoo.utils import compat, locks
from zoo.utils import files as atomic_files

BUSY = "busy"  # another process runs this job
current: Plan | None = None  # the plan that Hydra's sweeper runs


def job(composed: DictConfig) -> str:
    """Run one job of Hydra's; returns its status, or BUSY.

    Raises only when asked to stop, so that the other jobs still run.
    """
    configuration.discover()
    folder = Path(HydraConfig.get().runtime.output_dir)
    with claimed(folder) as is_ours:
        if not is_ours:
            return BUSY
        if (ended := status.of(folder)) in status.SETTLED:
            return ended
        with (
            (folder / "log.txt").open("a", encoding="utf-8") as log,
            contextlib.redirect_stdout(log),
        ):
            try:
                training_job.of_a_sweep(composed)
            except Exception as error:
                ended = status.of(folder)
                if ended not in status.SETTLED and not isinstance(error, ZooError):
                    traceback.print_exc(file=log)
                if ended not in status.ENDED:  # it failed before it could record that
                    summary = atomic_files.read_json(folder / "summary.json")
                    summary["status"] = status.FAILED
                    summary["error"] = f"{type(error).__name__}: {first_line(error)}"
                    atomic_files.write_json(folder / "summary.json", summary)
        return status.of(folder)


@contextlib.contextmanager
def claimed(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Claim a job for this process; gives whether it is ours.

    A claim ends with its process, however that ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locks.locked(folder / ".job", wait) as ours:
        yield ours


def batches() -> Iterator[list[Job]]:
    """The jobs for the sweeper: a first step of each arm, the tuning runs, then the compared runs.

    Settled runs are left out.
    """
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
    if trials:  # otherwise checked before the first run
        _refuse_others(current, jobs)
    yield _pending(current, jobs)


def broken(plan: Plan) -> str:
    """Which arms fail at their first step, and why; empty if none does."""
    failures = []
    for job in plan.first_steps():
        folder = plan.folder / job.folder
        if status.of(folder) == status.FAILED:
            error = atomic_files.read_json(folder / "summary.json").get("error")
            failures.append(
                f"arm {job.arm} fails at its first step: {error} ({folder / 'log.txt'})"
            )
    return "; ".join(failures)


def _pending(plan: Plan, jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if status.of(plan.folder / job.folder) not in status.SETTLED]


def tuned(plan: Plan) -> dict[str, dict[str, Any]]:
    """The best point of each arm over the tuning seeds; the whole search goes into study.json.

    A point at which a run diverged or failed is never chosen. An arm without another point runs
    as it is.
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
    axes = plan.study.tune.grid if plan.study.tune else {}
    best = min if measure.lower_is_better else max
    chosen, search = {}, {}
    for arm, values_by_point in scores.items():
        means = [_mean(values) for values in values_by_point]
        reached = [mean for mean in means if mean is not None]
        point = grid[means.index(best(reached))] if reached else {}
        edges = [
            option
            for option, value in point.items()
            if value in (axes[option][0], axes[option][-1])
        ]
        chosen[arm] = point
        search[arm] = {"point": point, "at_the_edge": edges, "points": grid, "means": means}
    with specification.writing(plan.folder) as content:
        atomic_files.write_json(plan.folder / "study.json", content | {"tuned": search})
    return chosen


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where a value is missing."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _refuse_others(plan: Plan, jobs: Sequence[Job]) -> None:
    """Refuse a folder that holds a run of another configuration."""
    for job in jobs:
        folder = plan.folder / job.folder
        changed = (
            run_folder.changed(job.config, folder) if (folder / "config.yaml").exists() else []
        )
        if changed:
            raise ZooError(
                f"{folder} holds a run of another configuration (different: {', '.join(changed)}):"
                " delete it, or choose another hydra.sweep.dir"
            )


def prepare(plan: Plan) -> list[str]:
    """Refuse a folder of other runs, write study.json, and note which finished runs are reused."""
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
        notes.append(f"{reused} of {len(jobs)} runs are done already and are reused")
    notes += [
        f"{number} of these with {what}: delete their folders to run them again"
        for what, number in others.items()
    ]
    if first := plan.first_steps():
        which = "each arm" if len(first) == len(plan.arms) else f"{len(first)} arms"
        notes.append(f"one step of {which} is tried first")
    return notes + specification.record(plan)


def _otherwise(job: Job, summary: Mapping[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """In what a finished run differs from a new one: the code, the packages, the data."""
    if not now:
        now.update(sha=provenance.git_sha(), versions=provenance.versions())
    if summary.get("git_sha") != now["sha"]:
        before, after = str(summary.get("git_sha"))[:12], str(now["sha"])[:12]
        yield f"another version of the code ({before}, now {after})"
    old = (summary.get("sources") or {}).get("files") or {}
    new = provenance.sources(job.config)["files"]
    for module in sorted(old.keys() & new.keys()):
        if old[module] != new[module]:
            yield f"another source of {module}"
    versions = summary.get("versions") or {}
    packages = [
        f"{name} {version}"
        for name, version in versions.items()
        if now["versions"].get(name) != version
    ]
    if packages:
        yield f"other packages ({', '.join(packages)})"
    data = repr(job.config["data"])
    if data not in now:
        now[data] = registry.build("data", job.config["data"]).fingerprint()
    fingerprint = (summary.get("data") or {}).get("fingerprint", now[data])
    if fingerprint != now[data]:
        yield f"other data (fingerprint {fingerprint[:12]}, now {now[data][:12]})"


def execute(plan: Plan, overrides: Sequence[str], flags: Sequence[str]) -> int:
    """Run what is left of a plan through Hydra's launcher; returns the number of failed jobs."""
    global current
    current = plan
    sweep = [
        "hydra/sweeper=zoo_study",
        f"hydra.sweep.dir={typed(str(plan.folder))}",
        "hydra.output_subdir=null",
        "hydra.job.name=train",
        "hydra.hydra_logging.root.level=WARNING",
    ]
    arguments = command_line.parse([*overrides, *sweep, "--multirun", *flags])
    with Watch(plan):
        try:
            compat.hydra_main(arguments, job, str(configuration.CONF))
        finally:
            current = None
    if failures := broken(plan):
        raise ZooError(
            f"{failures}: no run was started; fix the arm, or leave it out, and run the same"
            " command again"
        )
    folders = [plan.folder / job.folder for job in [*plan.trials(), *plan.jobs()]]
    return sum(status.of(folder) not in status.SETTLED for folder in folders)
