"""Write a study as a W&B sweep, whose agents each run one arm and seed of the plan."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from ablations.plan import Plan
from zoo.errors import ZooError, did_you_mean
from zoo.utils.files import write_atomically

ABOUT = """\
# The runs of study {name}, for agents of Weights & Biases that share this folder:
#   wandb sweep {path}
#   wandb agent ...     as it prints, in this folder, on each machine
# Then run the study's own command again: it finds all runs done and writes the report.
"""


def write(plan: Plan, overrides: Sequence[str], path: Path) -> None:
    """Write a sweep file whose grid is the jobs of a plan.

    `overrides` are those of the study's command.
    """
    if plan.study.tune:
        raise ZooError(
            "wandb_sweep: agents run jobs in any order, and this study tunes first: run it without"
            " agents"
        )
    loggers = [config["logger"] for config in plan.configs]
    if any(logger["name"] != "wandb" for logger in loggers):
        raise ZooError(
            "wandb_sweep: its agents need runs that log to Weights & Biases: add logger=wandb"
        )
    content = {
        "name": plan.folder.name,
        **{key: loggers[0][key] for key in ("project", "entity") if loggers[0][key]},
        "program": "ablations.run",
        "method": "grid",
        "command": [
            "${env}",
            "${interpreter}",
            "-m",
            "${program}",
            *overrides,
            "${args_no_hyphens}",
        ],
        "metric": {
            "name": plan.study.metric,
            "goal": "minimize" if plan.study.measure.lower_is_better else "maximize",
        },
        "parameters": {
            "arm": {"values": [arm.name for arm in plan.arms]},
            "seed": {"values": plan.study.seeds},
        },
    }
    about = ABOUT.format(name=plan.study.name, path=shlex.quote(str(path)))
    sweep = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
    write_atomically(path, (about + sweep).encode())


def only(plan: Plan, arm: str, seed: str) -> Plan:
    """The part of a plan that is one run. Raises ZooError for a run that the plan does not have."""
    names = [one.name for one in plan.arms]
    if arm not in names:
        raise ZooError(f"arm={arm}: no such arm{did_you_mean(arm, names)}")
    if seed not in map(str, plan.study.seeds) or plan.study.tune:
        tuning = ", after tuning" if plan.study.tune else ""
        raise ZooError(f"seed={seed}: this study's seeds are {plan.study.seeds}{tuning}")
    here = names.index(arm)
    return replace(
        plan,
        study=replace(plan.study, seeds=[int(seed)]),
        arms=[plan.arms[here]],
        configs=[plan.configs[here]],
        costs=[plan.costs[here]],
    )
