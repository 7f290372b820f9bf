"""The command line `python -m zoo.train norm=rms pos=rope`: what is asked for is checked before anything is run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from zoo import config as configuration
from zoo.config import CONF
from zoo.config import overrides as override_grammar
from zoo.errors import ZooError, cli_errors, command, did_you_mean
from zoo.tracking import run_folder
from zoo.training import preflight
from zoo.utils import distributed, files, system
from zoo.utils.progress import doing

INTERRUPTED = 130  # the exit status of a run that was asked to stop, and can be resumed


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
--cfg job                       print the configuration that your words give, and stop
--hydra-help                    Hydra's own flags
"""


@cli_errors()
def main() -> None:
    """Check every run that the command line asks for, then let Hydra launch them."""
    arguments = asked()
    if not answered(arguments):
        prepare(arguments)
        launch(arguments)


def answered(arguments: Namespace) -> bool:
    """Answer a command line that asks for this program's own help or for a configuration; say whether it was one."""
    configuration.discover()
    if arguments.help:
        print(_help(arguments.overrides))
    elif arguments.cfg == "job" and not arguments.multirun and not arguments.package:
        print(OmegaConf.to_yaml(configuration.compose(arguments.overrides)), end="")
    else:
        return False
    return True


def launch(arguments: Namespace) -> None:
    """Hand the command line to Hydra, which runs its jobs, or shows what it is asked about."""
    sys.argv[1:] = [
        *configuration.spelled(arguments.overrides),
        *sys.argv[1 + len(arguments.overrides) :],
    ]
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    if sys.modules["__main__"].__spec__ is None and Path(sys.argv[0]).is_file():
        os.environ["ZOO_SCRIPT"] = os.path.abspath(
            sys.argv[0]
        )  # with components of its own, which its jobs' processes need
    os.environ["HYDRA_FULL_ERROR"] = (
        "1"  # else Hydra prints a traceback for a folder that cannot be made
    )
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(train)()


def asked() -> Namespace:
    """The command line, with its flags wherever people type them; Hydra, which reads it again, wants them after the words."""
    parser = get_args_parser()
    arguments, unknown = parser.parse_known_intermixed_args()
    if unknown:
        flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
        raise ZooError(f"unknown flag {unknown[0]}{did_you_mean(unknown[0], flags)}")
    acts = {
        "--run": arguments.run,
        "--multirun": arguments.multirun,
        "--cfg": arguments.cfg,
        "--info": arguments.info,
        "--shell-completion": arguments.shell_completion,
    }
    if len(several := [flag for flag, given in acts.items() if given]) > 1:
        raise ZooError(f"{' and '.join(several)} ask for different things: give one of them")
    for flag, told in (("--resolve", arguments.resolve), ("--package", arguments.package)):
        if told and not arguments.cfg:
            raise ZooError(
                f"{flag} is about a configuration that is shown: give --cfg job beside it"
            )
    override_grammar = list(arguments.overrides)
    sys.argv[1:] = [
        *override_grammar,
        *(word for word in sys.argv[1:] if word not in override_grammar),
    ]
    for flag, told in (
        ("--config-name", arguments.config_name),
        ("--config-path", arguments.config_path),
    ):
        if told is not None:
            raise ZooError(
                f"{flag} {told}: there is one configuration; put yours into FOLDER/experiment/NAME.yaml, and give"
                " --config-dir FOLDER experiment=NAME"
            )
    if arguments.config_dir is not None and not Path(arguments.config_dir).is_dir():
        raise ZooError(f"--config-dir {arguments.config_dir}: there is no such folder")
    return arguments


def train(composed: DictConfig) -> None:
    """One job of Hydra's. What a single run refuses is said here, before Hydra says it in many lines."""
    with cli_errors() if HydraConfig.get().mode == RunMode.RUN else contextlib.nullcontext():
        job(composed)


def job(composed: DictConfig) -> None:
    """A run in the folder that Hydra made for it."""
    hydra_config = HydraConfig.get()
    folder, config = (
        Path(hydra_config.runtime.output_dir),
        configuration.finished(composed, hydra_config.overrides.task),
    )
    overrides = list(hydra_config.overrides.task)
    processes = config["trainer"]["devices"] * config["trainer"]["nodes"]
    if (
        hydra_config.mode == RunMode.MULTIRUN
        and distributed.is_rank_zero()
        and not run_folder.requeued()
    ):
        run_folder.refuse_other_run(config, folder, "hydra.sweep.dir")
    if (
        hydra_config.mode == RunMode.MULTIRUN
        and processes > 1
        and not distributed.launched_externally()
    ):
        _in_own_process(overrides, folder)
        return
    if run_folder.is_finished(config, folder):
        _show(files.read_json(folder / "summary.json"), folder)
        return
    with doing("loading Lightning"):
        from zoo.training import runner
    from zoo.training.divergence import Diverged
    from zoo.training.signals import Interrupted

    try:
        summary = runner.run(config, folder, overrides)
    except (Diverged, Interrupted) as ending:
        if ending.agreed and not distributed.is_rank_zero():
            sys.exit(0)  # the first tells it; Lightning would kill it if another ended otherwise
        if isinstance(ending, Diverged):
            raise
        given = [word for word in hydra_config.overrides.hydra if word.startswith("hydra.run.dir=")]
        kept = [word for word in overrides if word != "resume=auto"]
        print(
            f"\ninterrupted ({ending}); resume with: {command('zoo.train', *kept, *given, 'resume=auto')}"
        )
        sys.exit(INTERRUPTED)
    _show(summary, folder)


def prepare(arguments: Namespace) -> None:
    """Refuse what cannot run, before the first job; send a resumed run to its folder."""
    if only_asks(arguments):
        return
    for word in () if arguments.multirun else arguments.overrides:
        if word.startswith("hydra/launcher="):
            raise ZooError(f"{word} launches the jobs of a sweep: give -m beside it")
    # A wrong override is found in all of the jobs before torch is imported.
    jobs = list(configuration.jobs(arguments))
    preflight.check_jobs(jobs, arguments.overrides, arguments.multirun)
    run_dir = override_grammar.given("hydra.run.dir", arguments.overrides)
    if jobs and not arguments.multirun and not run_dir and distributed.launched_externally():
        raise ZooError(
            "processes that srun or torchrun has started cannot agree on a folder: give hydra.run.dir=FOLDER"
        )
    if not jobs or not distributed.is_rank_zero():
        return
    if arguments.multirun:
        run_folder.refuse_other_runs([config for _, config in jobs], arguments.overrides)
        return
    config = jobs[0][1]
    if run_dir:
        run_folder.refuse_other_run(config, Path(run_dir))
    elif config["resume"] == "auto":
        folder = run_folder.newest_unfinished(config, Path("runs"))
        if folder:
            print(f"resuming {folder}")
            sys.argv.append(f"hydra.run.dir={override_grammar.typed(str(folder))}")


def _in_own_process(overrides: list[str], folder: Path) -> None:
    """In a multirun, ranks that re-run the parent's words would start the whole sweep again, so a job gets its own."""
    start = [os.environ["ZOO_SCRIPT"]] if "ZOO_SCRIPT" in os.environ else ["-m", "zoo.train"]
    process = subprocess.Popen(
        [
            sys.executable,
            *start,
            *overrides,
            f"hydra.run.dir={override_grammar.typed(str(folder.resolve()))}",
        ]
    )
    before = {}
    with contextlib.suppress(ValueError):  # only a main thread may handle signals
        for number in system.STOP:
            before[number] = signal.signal(
                number, lambda number, frame: process.send_signal(number)
            )
    code = process.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    if code == INTERRUPTED:
        sys.exit(code)
    if code:
        summary = files.read_json(folder / "summary.json")
        if summary.get("status") in (
            None,
            "running",
        ):  # a rank that died took the first one with it
            files.write_json(
                folder / "summary.json",
                summary | {"status": "failed", "error": "a process of the job died"},
            )
        raise ZooError(f"the job failed: see {folder / 'summary.json'}")


def _help(overrides: list[str]) -> str:
    choices = "\n".join(
        f"{group}: {', '.join(names)}" for group, names in configuration.menu().items() if names
    )
    return HELP.format(menu=choices, config=OmegaConf.to_yaml(configuration.compose(overrides)))


def only_asks(arguments: Namespace) -> bool:
    """Whether a command line asks for information rather than for a run."""
    return bool(
        arguments.help
        or arguments.hydra_help
        or arguments.info
        or arguments.cfg
        or arguments.shell_completion
    )


def _show(summary: dict[str, Any], folder: Path) -> None:
    if distributed.is_rank_zero():
        from zoo.training import result_screen

        result_screen.show(summary, Path(os.path.relpath(folder)))


if __name__ == "__main__":
    main()
