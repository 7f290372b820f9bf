"""A study as a sweep of Weights & Biases, for those who prefer its agents: each takes an arm and a seed of the same plan."""

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
#   wandb agent ...     as it says, here, as many as there are machines
# Then the study's own line again, which finds all runs done and writes the report.
"""


def write(plan: Plan, words: Sequence[str], path: Path) -> None:
    """A sweep file whose grid has the jobs of a plan; `words` are those of the study's command line."""
    if plan.study.tune:
        raise ZooError(
            "wandb_sweep: agents take runs in any order, and this study tunes first: run it without them"
        )
    loggers = [config["logger"] for config in plan.configs]
    if any(logger["name"] != "wandb" for logger in loggers):
        raise ZooError(
            "wandb_sweep: agents wait for runs that log to Weights & Biases: add logger=wandb"
        )
    content = {
        "name": plan.folder.name,
        **{key: loggers[0][key] for key in ("project", "entity") if loggers[0][key]},
        "program": "ablations.run",
        "method": "grid",
        "command": ["${env}", "${interpreter}", "-m", "${program}", *words, "${args_no_hyphens}"],
        "metric": {
            "name": plan.study.metric,
            "goal": "minimize" if plan.study.measure.lower_is_better else "maximize",
        },
        "parameters": {
            "arm": {"values": [arm.name for arm in plan.arms]},
            "seed": {"values": plan.study.seeds},
        },
    }
    told = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
    write_atomically(
        path, (ABOUT.format(name=plan.study.name, path=shlex.quote(str(path))) + told).encode()
    )


def only(plan: Plan, arm: str, seed: str) -> Plan:
    """The part of a plan that is one run. Raises ZooError where the plan has no such run."""
    names = [one.name for one in plan.arms]
    if arm not in names:
        raise ZooError(f"arm={arm}: no such arm{did_you_mean(arm, names)}")
    if seed not in map(str, plan.study.seeds) or plan.study.tune:
        raise ZooError(
            f"seed={seed}: this study's seeds are {plan.study.seeds}"
            + ", after tuning" * bool(plan.study.tune)
        )
    here = names.index(arm)
    return replace(
        plan,
        study=replace(plan.study, seeds=[int(seed)]),
        arms=[plan.arms[here]],
        configs=[plan.configs[here]],
        costs=[plan.costs[here]],
    )
