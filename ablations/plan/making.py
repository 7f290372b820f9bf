"""Make a plan from a study: compose, check and match its arms before anything runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ablations import design
from ablations.matching import Matched, match
from ablations.plan.jobs import Plan
from ablations.study import Study
from zoo.config.overrides import typed
from zoo.errors import ZooError
from zoo.utils import files


def make(
    study: Study,
    folder: Path | None = None,
    notes: list[str] | None = None,
    extra: Sequence[str] = (),
) -> Plan:
    """Plan a study. Raises ZooError for whatever in it cannot run, by name.

    What the user should know is appended to `notes`. The overrides in `extra` help to compose the
    arms, and are no part of the study.
    """
    if study.tune and set(study.tune.seeds) & set(study.seeds):
        raise ZooError(
            "study: tune.seeds must not be among seeds: options chosen on a seed must not be"
            " compared on it"
        )
    arms = design.arms(study)
    matched = match(study, arms, design.checked(study, arms, extra))
    _check_grid(study, matched)
    if notes is not None:
        notes += _warnings(study)
    folder = folder or Path("studies") / f"{design.safe(study.name)}_{study.key[:8]}"
    return Plan(
        study,
        folder,
        [each.arm for each in matched],
        [each.config for each in matched],
        [each.cost for each in matched],
    )


def _check_grid(study: Study, matched: Sequence[Matched]) -> None:
    for option in study.tune.grid if study.tune else ():
        group, _, name = option.rpartition(".")
        for arm, config, _ in matched:
            if name not in config.get(group, {}):
                raise ZooError(f"arm {arm.name}: tune.grid: no option {option}")


def _warnings(study: Study) -> list[str]:
    warnings = []
    if len(study.seeds) < 5:
        number = "1 seed" if len(study.seeds) == 1 else f"{len(study.seeds)} seeds"
        warnings.append(
            f"{number} per arm: exploratory. Differences may be chance, and no winner is named;"
            " use five or more to decide."
        )
    if study.match == "seconds":
        warnings.append(
            "match: seconds depends on the machine: reported for each arm, not solved for."
        )
    return warnings


def same_study_elsewhere(study: Study, folder: Path) -> str | None:
    """A hint at another folder that holds this study with other seeds or another margin."""
    ours = asdict(study)
    for path in sorted(folder.parent.glob(f"{design.safe(study.name)}_*/study.json")):
        theirs = files.read_json(path).get("study")
        if path.parent != folder and theirs and _same_but_for_size(theirs, ours):
            option = shlex.quote(f"hydra.sweep.dir={typed(str(path.parent))}")
            return (
                f"{path.parent} holds this study with the seeds {theirs['seeds']} and the margin"
                f" {theirs['margin']}: add {option} to use its runs; the report then says that"
                " this is a second look"
            )
    return None


def _same_but_for_size(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    return {**theirs, "seeds": ours["seeds"], "margin": ours["margin"]} == ours
