"""Train one run or a sweep: `python -m zoo.train norm=rms pos=rope`, checked before it starts."""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import configure_log, run_job
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from zoo import config as configuration
from zoo.config import CONF
from zoo.config.overrides import given, typed
from zoo.errors import ZooError, cli_errors
from zoo.launch import command_line, preflight
from zoo.launch.run_spec import RunSpec
from zoo.tracking import run_folder
from zoo.training import job
from zoo.utils import compat, distributed

HELP = """\
Train a transformer made of the parts that you name:

    python -m zoo.train norm=rms pos=rope

== What you can choose ==
{menu}

== The configuration, each line of which can be changed (as in arch.layers=6) ==
{config}
== More ==
python -m zoo.components        what each choice is, its options and its paper
python -m zoo.cost model=gpt2   what a model costs, without building it
-m norm=layer,rms seed=0,1      one run for each combination
resume=auto                     resume an interrupted run of the same overrides
changing=[trainer.max_steps]    and with other values of these
hydra.run.dir=FOLDER            where the run goes, instead of runs/ and the time
--cfg job                       print the configuration that your overrides give, and stop
--hydra-help                    Hydra's own flags
"""


@cli_errors()
def main() -> None:
    """Answer a question, run a sweep, or run once."""
    arguments = command_line.parse()
    configuration.discover()
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    if arguments.help:
        print(_help(arguments.overrides))
    elif arguments.cfg == "job" and not arguments.multirun and not arguments.package:
        print(OmegaConf.to_yaml(configuration.compose(arguments.overrides)), end="")
    elif command_line.only_asks(arguments):
        launch(arguments)
    elif arguments.multirun:
        preflight.check_sweep(arguments)
        launch(arguments)
    else:
        run_once(arguments)


def launch(arguments: Namespace) -> None:
    """Let Hydra launch the jobs of a sweep, or show what it is asked about."""
    if sys.modules["__main__"].__spec__ is None and Path(sys.argv[0]).is_file():
        # A script with components of its own, which the processes of its jobs need.
        os.environ["ZOO_SCRIPT"] = os.path.abspath(sys.argv[0])
    # Else Hydra prints a traceback for a folder that cannot be made.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    arguments.overrides = configuration.spelled(arguments.overrides)
    compat.hydra_main(arguments, train, str(CONF))


def train(composed: DictConfig) -> None:
    """Carry out one job of a sweep."""
    job.of_a_sweep(composed)


def run_once(arguments: Namespace) -> None:
    """Compose and check one run, and carry it out by what was composed."""
    overrides = configuration.given_overrides(arguments)
    for word in overrides:
        if word.startswith("hydra/launcher="):
            raise ZooError(f"{word} launches the jobs of a sweep: give -m beside it")
    with configuration.composing_job(overrides) as (composed, config):
        multirun = composed.hydra.mode == RunMode.MULTIRUN
        if not multirun:
            spec = RunSpec(config, list(composed.hydra.overrides.task))
            preflight.check_run(spec)
            _choose_folder(config, composed, given("hydra.run.dir", overrides))
            _carry_out(spec, composed)
    if multirun:  # as hydra.mode=MULTIRUN asks for, without -m
        launch(arguments)


def _carry_out(spec: RunSpec, composed: DictConfig) -> None:
    """Do what Hydra does for a single job: its logging, its folder, its callbacks."""
    composed.hydra.mode = RunMode.RUN
    configure_log(composed.hydra.hydra_logging, composed.hydra.verbose)
    callbacks = compat.hydra_callbacks(composed)
    callbacks.on_run_start(config=composed, config_name="config")
    ended = run_job(
        task_function=cli_errors()(lambda _: job.carry_out(spec)),
        config=composed,
        job_dir_key="hydra.run.dir",
        job_subdir_key=None,
        hydra_context=HydraContext(GlobalHydra.instance().config_loader(), callbacks),
    )
    callbacks.on_run_end(config=composed, config_name="config", job_return=ended)
    ended.return_value  # noqa: B018  raises what the job raised


def _choose_folder(config: configuration.Config, composed: DictConfig, run_dir: str | None) -> None:
    """Refuse a folder of another run; send a resumed run to its folder."""
    if not run_dir and distributed.launched_externally():
        raise ZooError(
            "processes that srun or torchrun has started cannot agree on a folder: give"
            " hydra.run.dir=FOLDER"
        )
    if not distributed.is_rank_zero():
        return
    if run_dir:
        run_folder.refuse_other_run(config, Path(run_dir))
    elif config["resume"] == "auto":
        folder = run_folder.newest_unfinished(config, Path("runs"))
        if folder:
            print(f"resuming {folder}")
            composed.hydra.run.dir = str(folder)
            composed.hydra.overrides.hydra.append(f"hydra.run.dir={typed(str(folder))}")


def _help(overrides: list[str]) -> str:
    menu = configuration.menu()
    choices = "\n".join(f"{group}: {', '.join(names)}" for group, names in menu.items() if names)
    return HELP.format(menu=choices, config=OmegaConf.to_yaml(configuration.compose(overrides)))


if __name__ == "__main__":
    main()
