"""Refuse runs that cannot work before the first one starts: on this machine, or on any."""

from __future__ import annotations

import math
import os
import socket
from argparse import Namespace
from collections.abc import Collection, Sequence

from zoo.config import Config
from zoo.config import jobs as jobs_of
from zoo.config.overrides import parse
from zoo.cost import gpus
from zoo.errors import ZooError, first_line
from zoo.launch.run_spec import RunSpec
from zoo.tracking import run_folder
from zoo.utils import distributed
from zoo.utils.progress import doing

# "dryrun" and "run" are old names of "offline" and "online".
WANDB_MODES = ("online", "offline", "disabled", "shared", "dryrun", "run")


def check_run(spec: RunSpec) -> None:
    """Refuse a run that cannot work."""
    refuse_impossible(spec.config)
    with doing("loading torch and checking the model"):
        refuse_meaningless(spec)
        refuse_impossible(spec.config)  # once more, as torch may know better


def check_sweep(arguments: Namespace) -> None:
    """Refuse a sweep with a run that cannot work, that is there twice, or whose folder holds
    another.
    """
    asked = arguments.overrides
    # A wrong override is found in all of the jobs before torch is imported.
    jobs = list(jobs_of(arguments))
    swept = {word.key_or_group for word in map(parse, asked) if word.is_sweep_override()}
    names = [_name(overrides, swept) for overrides, _ in jobs]
    configs = [config for _, config in jobs]
    _refuse_repeated(names, configs)
    # Another machine may have a GPU.
    here = not any(word.startswith("hydra/launcher=") for word in asked)
    for config in configs if here else ():
        refuse_impossible(config)
    checked: set[str] = set()
    for name, config in zip(names, configs, strict=True):
        without_seed = repr({**config, "seed": None})
        if without_seed in checked:
            continue
        checked.add(without_seed)
        try:
            with doing("loading torch and checking the model"):
                refuse_meaningless(RunSpec(config))
                if here:
                    refuse_impossible(config)  # once more, as torch may know better
        except ZooError as error:
            raise ZooError(f"{name}: {error}") from error
    if distributed.is_rank_zero():
        run_folder.refuse_other_runs(configs, asked)


def _name(overrides: Sequence[str], swept: Collection[str]) -> str:
    """Name a job by the overrides in which it differs from the others."""
    own = [word for word in overrides if parse(word).key_or_group in swept]
    return " ".join(own or overrides)


def _refuse_repeated(names: Sequence[str], configs: Sequence[Config]) -> None:
    """Refuse a sweep that names one run twice: it would train twice, and count twice in a
    report.
    """
    known: dict[str, str] = {}
    for name, config in zip(names, configs, strict=True):
        key = repr(config)
        if known.get(key) == name:
            raise ZooError(f"{name} is asked for twice: leave one out")
        if key in known:
            raise ZooError(f"{known[key]} and {name} are the same run: leave one out")
        known[key] = name


def refuse_impossible(config: Config) -> None:
    """Refuse what this machine cannot run, as far as that is known without torch."""
    trainer = config["trainer"]
    if trainer["accelerator"] == "gpu" and gpus.no_gpu():
        raise ZooError(
            "trainer.accelerator=gpu, and this machine has no GPU: choose trainer=cpu, ddp_sim or"
            " fsdp_sim"
        )
    gpus.refuse_precision(trainer["precision"])
    if trainer["devices"] * trainer["nodes"] > 1 and not distributed.launched_externally():
        _refuse_used_port(os.environ.get("MASTER_PORT", "0"))
    mode = os.environ.get("WANDB_MODE")
    if config["logger"]["name"] == "wandb" and mode and mode not in WANDB_MODES:
        raise ZooError(
            f"WANDB_MODE={mode} in the environment is none of {', '.join(WANDB_MODES)}: unset it,"
            f" or choose"
            " logger=csv"
        )


def _refuse_used_port(port: str) -> None:
    """Refuse a port for the ranks to meet at, named by the environment, that is in use."""
    try:
        with socket.socket() as place:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(("", int(port)))
    except (OSError, ValueError, OverflowError) as error:
        raise ZooError(
            f"MASTER_PORT={port} in the environment cannot be used ({first_line(error)}): unset"
            f" it, and a free one"
            " is taken, or give another"
        ) from error


def refuse_meaningless(spec: RunSpec) -> None:
    """Build the model on the meta device, where it costs nothing, so that components refuse.

    Data, schedule, optimiser and objective are checked with it.
    """
    from zoo import objectives, optim, registry

    config, model = spec.config, spec.model
    registry.build("data", config["data"])
    registry.build("schedule", config["schedule"], config["trainer"]["max_steps"])
    optim.state_size(model, config["optim"], config["init"])
    objectives.check(config, model)
    for name in ("length", "eval_length"):
        if (config["loader"][name] or 0) > (model.limit or math.inf):
            raise ZooError(
                f"loader.{name}={config['loader'][name]} is longer than the {model.limit}"
                f" positions of"
                f" pos={config['pos']['name']}: raise arch.length, or choose pos=rope"
            )
