"""Read the command line of `zoo.train` and `ablations.run`: Hydra's flags, and overrides."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from zoo.errors import ZooError, did_you_mean
from zoo.utils import compat


def parse(line: Sequence[str] | None = None) -> Namespace:
    """Parse a command line, sys.argv by default, with its flags wherever people type them."""
    parser = compat.hydra_parser()
    arguments, unknown = parser.parse_known_intermixed_args(line)
    if unknown:
        flags = [f"--{name.replace('_', '-')}" for name in vars(arguments) if name != "overrides"]
        raise ZooError(f"unknown flag {unknown[0]}{did_you_mean(unknown[0], flags)}")
    actions = ("run", "multirun", "cfg", "info", "shell_completion")
    given = [f"--{name.replace('_', '-')}" for name in actions if getattr(arguments, name)]
    if len(given) > 1:
        raise ZooError(f"{' and '.join(given)} ask for different things: give one of them")
    for name in ("resolve", "package"):
        if getattr(arguments, name) and not arguments.cfg:
            raise ZooError(
                f"--{name} is about a configuration that is shown: give --cfg job beside it"
            )
    for name in ("config_name", "config_path"):
        value = getattr(arguments, name)
        if value is not None:
            raise ZooError(
                f"--{name.replace('_', '-')} {value}: there is one configuration; put yours into"
                " FOLDER/experiment/NAME.yaml, and give --config-dir FOLDER experiment=NAME"
            )
    if arguments.experimental_rerun is not None:
        raise ZooError(
            "--experimental-rerun reads a pickle, which can run any code: give the overrides in"
            " .hydra/overrides.yaml of that run instead"
        )
    if arguments.config_dir is not None and not Path(arguments.config_dir).is_dir():
        raise ZooError(f"--config-dir {arguments.config_dir}: there is no such folder")
    return arguments


def only_asks(arguments: Namespace) -> bool:
    """Whether a command asks for information rather than for a run."""
    return bool(
        arguments.help
        or arguments.hydra_help
        or arguments.info
        or arguments.cfg
        or arguments.shell_completion
    )
