"""Load the runs below a folder: those that a study planned, or those of a sweep."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ablations.results import agreement, untrusted
from ablations.results.runs import Results, Run
from zoo import metrics
from zoo.errors import ZooError, did_you_mean
from zoo.tracking.status import FINISHED
from zoo.utils.files import read_json


def load(folder: Path) -> Results:
    """Load a study's folder, or a sweep's.

    Raises ZooError where there is no run, none that has the metric, or runs that are not
    comparable.
    """
    plan = read_json(folder / "study.json")
    if plan or (folder / "study.json").exists():
        results = Results(folder, list(_planned(folder, plan)), plan)
    else:
        results = Results(folder, list(_swept(folder)))
        results.notes.append(
            "No study planned these runs: neither the question, the number of seeds nor a margin"
            " was fixed in advance, so an apparent finding may be the best of many looks. Take it"
            " as a hint for a study."
        )
    if not results.runs:
        raise ZooError(
            f"no run below {folder}: give the folder of a sweep or a study, whose jobs each have a"
            " summary.json"
        )
    _check_metric(results)
    results.notes += agreement.remarks(results)
    return results


def _check_metric(results: Results) -> None:
    finished = [run for run in results.runs if run.status == FINISHED]
    known = sorted({name for run in finished for name in run.summary.get("metrics") or {}})
    if finished and results.metric not in known:
        raise ZooError(
            f"no run has the metric {results.metric!r}{did_you_mean(results.metric, known)}"
        )
    metrics.of(results.metric)


def _summary(folder: Path) -> dict[str, Any]:
    """The usable part of a run's summary; empty where it cannot be read."""
    return untrusted.cleaned(read_json(folder / "summary.json"))


def _planned(folder: Path, plan: Mapping[str, Any]) -> Iterator[Run]:
    """The runs of a study, also those that have no folder yet."""
    try:
        arms = {str(arm["name"]): str(arm.get("folder", arm["name"])) for arm in plan["arms"]}
        seeds = [int(seed) for seed in plan["study"]["seeds"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ZooError(
            f"{folder / 'study.json'} is damaged: restore it, or move it away and run the study's"
            " command again, which writes it anew and notes that"
        ) from error
    for arm, arm_folder in arms.items():
        for seed in seeds:
            run_folder = folder / arm_folder / f"seed_{seed}"
            yield Run(arm, seed, run_folder, _summary(run_folder))


class _Swept(NamedTuple):
    folder: Path
    summary: dict[str, Any]
    overrides: list[str]  # without the seed, and without how the run was started


def _swept(folder: Path) -> Iterator[Run]:
    """The runs of a sweep; an arm is named by the overrides that not all runs have in common."""
    runs = [_read_swept(path.parent) for path in folder.glob("*/summary.json")]
    runs.sort(key=lambda run: (len(run.folder.name), run.folder.name))
    shared = _shared_overrides(runs)
    seen: dict[str, Counter[int]] = defaultdict(Counter)
    for run in runs:
        arm = " ".join(word for word in run.overrides if word not in shared) or "default"
        seed = run.summary.get("seed")
        if not isinstance(seed, int):
            seed = -1 - seen[arm][-1]
        seen[arm][seed] += 1
        if seen[arm][seed] > 1:
            raise ZooError(
                f"{run.folder} repeats seed {seed} of {arm}: a run counts once, so move one of them"
                " away"
            )
        yield Run(arm, seed, run.folder, run.summary)


def _read_swept(folder: Path) -> _Swept:
    summary = _summary(folder)
    overrides = [str(override) for override in summary.get("overrides") or []]
    started = ("seed=", "hydra.", "resume=")
    return _Swept(folder, summary, [word for word in overrides if not word.startswith(started)])


def _shared_overrides(runs: list[_Swept]) -> set[str]:
    """The overrides of all runs that have a summary; none if all runs have the same."""
    known = [set(run.overrides) for run in runs if run.summary]
    distinct = {tuple(run.overrides) for run in runs}
    return set.intersection(*known) if known and len(distinct) > 1 else set()
