"""Run a study, from its plan to its report: `python -m ablations.run study=norm`.

With plan_only=true it stops before the first run. Without a study,
`python -m ablations.run norm=layer,rms seed=0,1,2` runs each combination, then compares the arms.
"""

from __future__ import annotations

import shlex
import sys
import textwrap
from argparse import Namespace
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rich.table import Table
from rich.text import Text

from zoo import config as configuration
from zoo import train
from zoo.config import overrides as override_grammar
from zoo.config import suggestions
from zoo.errors import ZooError, cli_errors
from zoo.launch import command_line, preflight
from zoo.training import job
from zoo.utils import extras, tables
from zoo.utils.progress import doing

ONCE = ("plan_only=", "wandb_sweep=", "accept=")  # overrides about this one start of the command
KEYS = ("study", "plan_only", "wandb_sweep", "accept", "arm", "seed")
HELP = """\
Measure what a component is worth, and how certain that is:

    python -m ablations.run study=norm

== Studies (conf/study/NAME.yaml; study=FILE.yaml is one of your own) ==
{studies}

== Other options ==
plan_only=true                  show what would run, its budgets, hours and power, and stop
seeds=10 margin=0.02            other seeds, another margin; likewise each key of a study:
                                {keys}
trainer.max_steps=500           an override of every run, as for zoo.train
hydra/launcher=joblib           several runs at once; also submitit_local, submitit_slurm
hydra.sweep.dir=FOLDER          the folder of the runs and the report, instead of studies/NAME_HASH
logger=wandb                    log the runs and the report to Weights & Biases, too
accept=MODULE                   compare runs although the source of this module differs between
                                them; the report says so
wandb_sweep=FILE                write the runs as a W&B sweep, whose agents add arm=NAME seed=N;
                                then stop

Run the same command to continue a study that was stopped. Without study=, each combination is a
run, and a table compares them:

    python -m ablations.run norm=layer,rms seed=0,1,2

python -m ablations.report DIR  write the report of a study's or a sweep's folder again
python -m zoo.train --help      the options of a run
"""


@cli_errors()
def main() -> None:
    arguments = command_line.parse()
    if arguments.help:
        print(_help([Path(arguments.config_dir)] if arguments.config_dir else []))
        return
    if any(word.startswith("study=") for word in arguments.overrides):
        sys.exit(study(arguments))
    if command_line.only_asks(arguments):
        train.main()
        return
    from ablations import study as studies

    only = _plan_only(override_grammar.given("plan_only", arguments.overrides))
    for word in arguments.overrides:
        if word.split("=", 1)[0] in (*KEYS, *studies.field_names()) and not word.startswith(
            ("plan_only=", "seed=")
        ):
            raise ZooError(f"{word} is an option of a study: add study=NAME or study=FILE.yaml")
    arguments.overrides = [
        word for word in arguments.overrides if not word.startswith("plan_only=")
    ]
    folder = override_grammar.given("hydra.sweep.dir", arguments.overrides)
    if folder is None:
        folder = f"runs/sweep_{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
        arguments.overrides.append(f"hydra.sweep.dir={folder}")
    if (Path(folder) / "study.json").exists():
        raise ZooError(
            f"{folder} holds a study, whose report would not include a sweep: choose another"
            " hydra.sweep.dir"
        )
    arguments.multirun = True
    preflight.check_sweep(arguments)
    if only:
        _show_sweep(arguments)
        return
    try:
        train.launch(arguments)
    finally:  # a failed job ends the process, after the others have finished
        if Path(folder).is_dir():
            from ablations import report

            report.show(Path(folder))


def study(arguments: Namespace) -> int:
    """Plan a study, show the plan, run it and write the report. Returns the exit code."""
    with doing("loading torch"):
        from ablations import plan, report, results, scheduler, specification, wandb_sweep
        from ablations import study as studies
        from ablations.results import sources

    if command_line.only_asks(arguments):
        raise ZooError("a study has many configurations: plan_only=true shows their differences")
    options, hydra, common = _sorted(arguments.overrides)
    name = options.pop("study")
    folder = override_grammar.given("hydra.sweep.dir", arguments.overrides)
    sweep = options.pop("wandb_sweep", None)
    arm, seed = options.pop("arm", None), options.pop("seed", "")
    accepted = options.pop("accept", None)
    only = _plan_only(options.pop("plan_only", None))
    place = Path(arguments.config_dir).resolve() if arguments.config_dir else None
    loaded = studies.load(
        name,
        {key: studies.parse_value(value) for key, value in options.items()},
        [place] if place else [],
    )
    loaded = replace(loaded, common=studies.merged(loaded.common, common))
    console, notes = tables.console(), list[str]()
    extra = [f"hydra.searchpath=[file://{place}]"] if place else []
    with doing("planning: building the models without weights, and matching budgets"):
        planned = plan.make(loaded, Path(folder) if folder else None, notes, extra)
    flags = ["--config-dir", str(place)] if place else []
    one = planned if arm is None else wandb_sweep.only(planned, arm, seed)
    if one is planned:
        if hint := plan.same_study_elsewhere(loaded, planned.folder):
            notes.append(hint)
        notes += specification.foreseen(planned, specification.read(planned.folder))
        plan.show(planned, console, notes)
    if sweep is not None:
        again = [word for word in arguments.overrides if not word.startswith(ONCE)]
        wandb_sweep.write(planned, [*again, *flags], Path(sweep))
        console.print(
            Text(
                f"Run wandb sweep {shlex.quote(sweep)} to create a sweep; its agents run the study"
            )
        )
    if only or sweep is not None:
        return 0
    has_launcher = any(word.startswith("hydra/launcher=") for word in hydra)
    if not has_launcher:  # else other machines may run it
        for config in planned.configs:
            preflight.refuse_impossible(config)
    for note in scheduler.prepare(planned):
        console.print(Text(note, style="yellow"))
    try:
        failed = scheduler.execute(one, hydra, flags)
    except (SystemExit, KeyboardInterrupt) as stop:
        console.print(Text("\nStopped. Run the same command to continue."))
        if isinstance(stop, KeyboardInterrupt):
            return job.INTERRUPTED
        return stop.code if isinstance(stop.code, int) else 1
    if failed:
        number = "1 run" if failed == 1 else f"{failed} runs"
        console.print(
            Text(
                f"{number} failed: see summary.json and log.txt in the folder of each. Run the same"
                " command to try again."
            )
        )
    if one is not planned:  # an agent's run; the study's own command writes the report
        return int(failed > 0)
    if accepted is not None:
        sources.accept(results.load(planned.folder), accepted)
    report.show(planned.folder)
    if planned.configs[0]["logger"]["name"] == "wandb":
        from ablations.report import wandb_report

        for line in wandb_report.publish(planned):
            console.print(Text(line))
    return int(failed > 0)


def _plan_only(value: str | None) -> bool:
    if str(value).lower() not in ("none", "true", "false"):
        raise ZooError(f"plan_only must be true or false, not {value!r}")
    return str(value).lower() == "true"


def _show_sweep(arguments: Namespace) -> None:
    """Print the runs of a sweep, and what each would cost. Starts none."""
    from ablations.matching import measured

    jobs = list(configuration.jobs(arguments))
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold")
    for column in ("parameters", "FLOPs per token", "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for overrides, config in jobs:
        cost = measured(config)
        run = " ".join(word for word in overrides if not word.startswith("hydra."))
        table.add_row(
            Text(run), *(f"{cost[unit]:,}" for unit in ("parameters", "flops_per_token", "tokens"))
        )
    tables.show(table)
    number = "1 run" if len(jobs) == 1 else f"{len(jobs)} runs"
    tables.console().print(
        Text(
            f"{number}, not started. No study plans them: study=NAME fixes seeds, margin and power"
            " in advance."
        )
    )


def _help(folders: list[Path]) -> str:
    from ablations import study as studies

    shipped = [
        studies.load(str(path))
        for folder in (configuration.CONF, *folders)
        for path in sorted(folder.glob("study/*.yaml"))
    ]
    keys = textwrap.fill(", ".join(studies.field_names()), 92, subsequent_indent=" " * 32)
    return HELP.format(
        studies="\n".join(f"{study.name:<15} {study.question}" for study in shipped), keys=keys
    )


def _sorted(overrides: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Sort overrides into those of the study, of Hydra (its launcher), and of every run."""
    from ablations import study as studies

    options: dict[str, str] = {}
    hydra, common = [], []
    for word in overrides:
        key, _, value = word.partition("=")
        if key == "seed" and not any(other.startswith("arm=") for other in overrides):
            raise ZooError(f"{word}: a study has several seeds, as in seeds=5 or seeds=[0,1,2]")
        if key == "hydra/launcher":
            extras.need_launcher(value)
        if key == "arm":
            options[key] = value  # as it is written
        elif key in (*KEYS, *studies.field_names()):
            options[key] = value.strip("'\"")
        elif key.startswith("hydra"):
            hydra += [word] if key != "hydra.sweep.dir" else []
        else:
            _refuse_misspelt(key, word, [*KEYS, *studies.field_names()])
            common.append(word)
    return options, hydra, common


def _refuse_misspelt(key: str, word: str, keys: list[str]) -> None:
    """Refuse an unknown override whose nearest match is a key of a study."""
    groups = [*configuration.menu(), "seed", "resume", "changing"]
    if not key.isidentifier() or key in groups:
        return
    options = [name for name in suggestions.options(configuration.compose()) if "." in name]
    nearest = suggestions.nearest(key, [*keys, *groups, *options], suggestions.owners_of(key))
    meant = [name for name in nearest if name.strip("'") in keys]
    if meant:
        raise ZooError(f"unknown option {key!r} in {word!r}: did you mean {' or '.join(meant)}?")


if __name__ == "__main__":
    main()
