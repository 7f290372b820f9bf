"""Logs to Weights & Biases, one run per job, and never waits for a key or a network."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import netrc
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

import wandb
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from lightning.pytorch.loggers import WandbLogger
from yaml import YAMLError

from zoo.config import Config
from zoo.errors import ZooError, first_line
from zoo.registry import register
from zoo.utils import compat

STEP = "trainer/global_step"  # Lightning's name of it
NAME = 128  # characters, which is W&B's limit
UNSAID = ("hydra.", "logger", "trainer.", "resume", "changing")  # in a run's name, unless they vary
DEEPEST = 3  # folders from a job's up to its sweep's
log = logging.getLogger("zoo")


@register("logger", "wandb")
def wandb_logger(
    config: Config,
    folder: Path,
    summary: dict[str, Any],
    *,
    project: str | None = "zoo",
    entity: str | None = None,
    group: str | None = None,
    job_type: str | None = None,
    label: str | None = None,
    tags: list[str] = [],  # noqa: B006
    mode: Literal["auto", "online", "offline", "disabled"] = "auto",
) -> WandbLogger:
    """Weights & Biases, beside metrics.csv; by default offline where there is no key or no network.

    `group` is by default the folder of the sweep or the study, `job_type` is train or in a study
    the arm, and `label`, the run's name, its overrides. The names of components and the costs stand
    at the top of the run's configuration.
    """
    flat = summary["choices"] | {
        key: summary[key] for key in ("seed", "parameters", "flops_per_token")
    }
    of_sweep, varied = sweep(folder)
    summary["wandb"] = reachable_mode(mode)
    if (
        "WANDB_SWEEP_ID" in os.environ
    ):  # W&B takes its agent's name for the run, as it must when it is resumed
        summary["id"] = os.environ.get("WANDB_RUN_ID", summary["id"])
    run = begin(
        {"project": project, "entity": entity},
        folder,
        name=title(summary["overrides"], varied, label),
        group=group or of_sweep,
        job_type=job_type or "train",
        tags=tags,
        mode=summary["wandb"],
        id=summary["id"],
        resume="allow",
        config={**flat, "config": config},
    )
    return ResilientWandbLogger(run, summary)


def _dispensable(method: Callable[..., Any]) -> Callable[..., None]:
    """Call a method of the logger until one fails, and never again after that."""

    @functools.wraps(method)
    def call(self: ResilientWandbLogger, *args: Any, **kwargs: Any) -> None:
        if self.summary["wandb"] == "lost":
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # of W&B, of its process or of its connection
            self.summary["wandb"] = "lost"
            _forget(error)

    return call


class ResilientWandbLogger(WandbLogger):
    """W&B's logger, without which a run continues when it fails; metrics.csv has all curves."""

    def __init__(self, run: wandb.Run, summary: dict[str, Any]) -> None:
        super().__init__(experiment=run)
        self.summary = summary

    @_dispensable
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log at a step of the optimiser, which becomes W&B's step, the x axis of every curve."""
        self.experiment.log({**metrics, STEP: step}, step=step)

    log_hyperparams = _dispensable(WandbLogger.log_hyperparams)
    finalize = _dispensable(WandbLogger.finalize)


def finish(exit_code: int) -> None:
    """End the run of this process, where there is one."""
    try:
        wandb.finish(exit_code=exit_code)
    except Exception as error:
        _forget(error)


def _forget(error: Exception) -> None:
    """Warn that W&B failed, and end its process, so that this one's next run begins another."""
    log.warning(
        f"W&B failed ({type(error).__name__}: {first_line(error)}): the run continues without it,"
        " its curves are in metrics.csv"
    )
    with contextlib.suppress(Exception, SystemExit):
        wandb.teardown(exit_code=1)
    compat.forget_wandb_run()


def begin(settings: Mapping[str, Any], folder: Path, **about: Any) -> wandb.Run:
    """A run of W&B's in a folder. Raises ZooError for a name that W&B refuses."""
    quiet = wandb.Settings(silent=True, console="off", init_timeout=30, x_disable_stats=True)
    try:
        return wandb.init(
            dir=folder.resolve(),
            project=settings["project"],
            entity=settings["entity"],
            settings=quiet,
            **about,
        )
    except (wandb.errors.UsageError, ValueError) as error:
        raise ZooError(f"logger: {_message(error)}") from error
    except Exception as error:  # the server refuses, or is lost between `mode` and here
        if about["mode"] != "online":
            raise
        log.warning(
            f"W&B cannot begin a run online ({first_line(error)}): it is offline, and `wandb sync`"
            " sends it later"
        )
        return begin(settings, folder, **about | {"mode": "offline"})


def _message(error: Exception) -> str:
    """The message of a W&B error; of pydantic's errors all reasons, as the first line has none."""
    reasons = getattr(error, "errors", None)
    if not callable(reasons):
        return first_line(error)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in reasons())


def reachable_mode(asked: str) -> str:
    """`online` only with a key and a server that answers, so that a run never waits for W&B."""
    asked = os.environ.get("WANDB_MODE") or asked
    asked = {"dryrun": "offline", "run": "online"}.get(asked, asked)  # as they were called once
    if asked != "auto":
        return asked
    server = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    host = server.hostname or "api.wandb.ai"
    if not (os.environ.get("WANDB_API_KEY") or _in_netrc(host)):
        return "offline"
    try:
        socket.create_connection((host, server.port or 443), timeout=2).close()
    except OSError:
        return "offline"
    return "online"


def _in_netrc(host: str) -> bool:
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def sweep(folder: Path) -> tuple[str | None, list[str]]:
    """The sweep that a job's folder lies in, whose runs form one group, and the keys that vary in
    it.

    Hydra writes both into the sweep's folder, before its first job.
    """
    for place in list(folder.resolve().parents)[:DEEPEST]:
        with contextlib.suppress(
            OSError, ValueError, YAMLError, LookupError, TypeError, HydraException
        ):
            told = yaml.safe_load((place / "multirun.yaml").read_text(encoding="utf-8"))["hydra"][
                "overrides"
            ]["task"]
            parsed = OverridesParser.create().parse_overrides([str(word) for word in told])
            return place.name, [word.key_or_group for word in parsed if word.is_sweep_override()]
    return None, []


def title(overrides: Sequence[str], varied: Sequence[str], label: str | None = None) -> str:
    """A run's name: the overrides that vary in its sweep, then the others, or its label.

    >>> title(["norm=rms", "seed=1", "trainer.max_steps=9"], ["seed"])
    'seed=1,norm=rms'
    """
    keys = [word.lstrip("+").partition("=")[0] for word in overrides]
    first = [word for word, key in zip(overrides, keys, strict=True) if key in varied]
    others = [word for word in overrides if word not in first and not word.startswith(UNSAID)]
    name = ",".join([label, *first] if label else [*first, *others]) or "default"
    if len(name) <= NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: NAME - len(digest) - 1]}…{digest}"
