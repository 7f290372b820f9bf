"""`python -m ablations.run study=norm`: a study, from its plan to its runs; plan_only=true stops before the first.

Without a study, `python -m ablations.run norm=layer,rms seed=0,1,2` is one run for each combination, then a table of the arms.
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
from zoo.training import preflight
from zoo.utils import extras, tables
from zoo.utils.progress import doing

ASKS = ("plan_only=", "wandb_sweep=", "accept=")  # of a line's words, what is about this one start
KEYS = ("study", "plan_only", "wandb_sweep", "accept", "arm", "seed")
HELP = """\
Ask what a component is worth, and how sure that is:

    python -m ablations.run study=norm

== The studies that are there (conf/study/NAME.yaml; study=FILE.yaml is yours) ==
{studies}

== What can be said beside ==
plan_only=true                  what would run, its budgets, hours and power; then stop (without study=, runs and costs)
seeds=10 margin=0.02            another number of seeds, another difference that does not matter; so for each key of a study:
                                {keys}
trainer.max_steps=500           what every run is told, as for zoo.train
hydra/launcher=joblib           several runs at once; also submitit_local, submitit_slurm
hydra.sweep.dir=FOLDER          where the runs and the report go, instead of studies/NAME_HASH
logger=wandb                    the runs and the report in Weights & Biases, too
accept=MODULE                   judge runs although the source of this module differs between them, which the report then says
wandb_sweep=FILE                write the runs as a sweep for its agents, each of which adds arm=NAME seed=N; then stop

The same line again goes on with what is left. Without study=, each combination is a run, and a table compares them:

    python -m ablations.run norm=layer,rms seed=0,1,2

python -m ablations.report DIR  the report of a study's or a sweep's folder, again
python -m zoo.train --help      what a run can be told
"""


@cli_errors()
def main() -> None:
    arguments = train.asked()
    if arguments.help:
        print(_help([Path(arguments.config_dir)] if arguments.config_dir else []))
        return
    if any(word.startswith("study=") for word in arguments.overrides):
        sys.exit(study(arguments))
    if train.only_asks(arguments):
        train.main()
        return
    from ablations import study as studies

    only = _plan_only(override_grammar.given("plan_only", arguments.overrides))
    for word in arguments.overrides:
        if word.split("=", 1)[0] in (*KEYS, *studies.field_names()) and not word.startswith(
            ("plan_only=", "seed=")
        ):
            raise ZooError(f"{word} is about a study: give study=NAME or study=FILE.yaml beside it")
    sys.argv[1:] = [word for word in sys.argv[1:] if not word.startswith("plan_only=")]
    folder = override_grammar.given("hydra.sweep.dir", arguments.overrides)
    if folder is None:
        folder = f"runs/sweep_{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
        sys.argv.append(f"hydra.sweep.dir={folder}")
    if (Path(folder) / "study.json").exists():
        raise ZooError(
            f"{folder} holds a study, whose report a sweep would not be in: choose another hydra.sweep.dir"
        )
    sys.argv[1:1] = [] if arguments.multirun else ["-m"]
    arguments = train.asked()
    train.prepare(arguments)
    if only:
        _show_sweep(arguments)
        return
    try:
        train.launch(arguments)
    finally:  # a failing job ends the process with its error, after the others have finished
        if Path(folder).is_dir():
            from ablations import report

            report.show(Path(folder))


def study(arguments: Namespace) -> int:
    """Plan, show, run; gives the exit code."""
    with doing("loading torch"):
        from ablations import plan, report, results, scheduler, specification, wandb_sweep
        from ablations import study as studies
        from ablations.results import sources

    if train.only_asks(arguments):
        raise ZooError("a study has many configurations: plan_only=true shows what differs in them")
    told, hydra, common = _sorted(arguments.overrides)
    name, folder = told.pop("study"), override_grammar.given("hydra.sweep.dir", arguments.overrides)
    sweep, arm, seed = told.pop("wandb_sweep", None), told.pop("arm", None), told.pop("seed", "")
    accepted = told.pop("accept", None)
    only = _plan_only(told.pop("plan_only", None))
    place = Path(arguments.config_dir).resolve() if arguments.config_dir else None
    loaded = studies.load(
        name,
        {key: studies.parse_value(value) for key, value in told.items()},
        [place] if place else [],
    )
    loaded = replace(loaded, common=studies.merged(loaded.common, common))
    console, notes = tables.console(), list[str]()
    extra = [f"hydra.searchpath=[file://{place}]"] if place else []
    with doing("planning: the models are made, without content, and matched"):
        planned = plan.make(loaded, Path(folder) if folder else None, notes, extra)
    flags = ["--config-dir", str(place)] if place else []
    one = planned if arm is None else wandb_sweep.only(planned, arm, seed)
    if one is planned:
        if hint := plan.same_study_elsewhere(loaded, planned.folder):
            notes.append(hint)
        notes += specification.foreseen(planned, specification.read(planned.folder))
        plan.show(planned, console, notes)
    if sweep is not None:
        again = [word for word in arguments.overrides if not word.startswith(ASKS)]
        wandb_sweep.write(planned, [*again, *flags], Path(sweep))
        console.print(
            Text(
                f"wandb sweep {shlex.quote(sweep)} makes a sweep of it, whose agents run the study"
            )
        )
    if only or sweep is not None:
        return 0
    if not any(word.startswith("hydra/launcher=") for word in hydra):  # else other machines run it
        for config in planned.configs:
            preflight.refuse_impossible(config)
    for note in scheduler.prepare(planned):
        console.print(Text(note, style="yellow"))
    try:
        failed = scheduler.execute(one, hydra, flags)
    except (SystemExit, KeyboardInterrupt) as stop:
        console.print(Text("\nstopped; the same line goes on with what is left"))
        return (
            train.INTERRUPTED
            if isinstance(stop, KeyboardInterrupt)
            else stop.code
            if isinstance(stop.code, int)
            else 1
        )
    if failed:
        console.print(
            Text(
                f"{failed} runs failed: each folder's summary.json and log.txt say why; the same line tries again"
            )
        )
    if one is not planned:  # the study's own line, once more, ends with the report
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
    """Print the runs of a sweep, and what each would cost."""
    from ablations.matching import measured

    jobs = list(configuration.jobs(arguments))
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold")
    for column in ("parameters", "FLOPs per token", "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for told, config in jobs:
        cost = measured(config)
        run = " ".join(word for word in told if not word.startswith("hydra."))
        table.add_row(
            Text(run), *(f"{cost[unit]:,}" for unit in ("parameters", "flops_per_token", "tokens"))
        )
    tables.show(table)
    tables.console().print(
        Text(
            f"{len(jobs)} runs, of which none has begun. No study plans them: with study=NAME, seeds,"
            " margin and power are fixed before."
        )
    )


def _help(places: list[Path]) -> str:
    from ablations import study as studies

    found = [
        studies.load(str(path))
        for place in (configuration.CONF, *places)
        for path in sorted(place.glob("study/*.yaml"))
    ]
    keys = textwrap.fill(", ".join(studies.field_names()), 92, subsequent_indent=" " * 32)
    return HELP.format(
        studies="\n".join(f"{study.name:<15} {study.question}" for study in found), keys=keys
    )


def _sorted(overrides: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """What a command line says of the study, what of Hydra (its launcher), and what of every run."""
    from ablations import study as studies

    told: dict[str, str] = {}
    hydra, common = [], []
    for word in overrides:
        key, _, value = word.partition("=")
        if key == "seed" and not any(other.startswith("arm=") for other in overrides):
            raise ZooError(f"{word}: a study has several, as in seeds=5 or seeds=[0,1,2]")
        if key == "hydra/launcher":
            extras.need_launcher(value)
        if key == "arm":
            told[key] = value  # as it is written
        elif key in (*KEYS, *studies.field_names()):
            told[key] = value.strip("'\"")
        elif key.startswith("hydra"):
            hydra += [word] if key != "hydra.sweep.dir" else []
        else:
            _refuse_misspelt(key, word, [*KEYS, *studies.field_names()])
            common.append(word)
    return told, hydra, common


def _refuse_misspelt(key: str, word: str, keys: list[str]) -> None:
    """A word that is nothing of a run's is a study's, where that is what it is nearest to."""
    groups = [*configuration.menu(), "seed", "resume", "changing"]
    if not key.isidentifier() or key in groups:
        return
    options = [name for name in suggestions.options(configuration.compose()) if "." in name]
    found = suggestions.nearest(key, [*keys, *groups, *options], suggestions.owners_of(key))
    if meant := [name for name in found if name.strip("'") in keys]:
        raise ZooError(f"unknown word {key!r} in {word!r}: did you mean {' or '.join(meant)}?")


if __name__ == "__main__":
    main()
