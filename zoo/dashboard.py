"""Weights & Biases: one run a job, flat names to group by, and never a prompt or a wait where there is no key or network."""

from __future__ import annotations

import netrc
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import wandb
from lightning.pytorch.loggers import WandbLogger

from zoo.config import Config
from zoo.registry import ZooError, first_line


def wandb_logger(config: Config, folder: Path, summary: dict[str, Any]) -> WandbLogger:
    """A logger whose run has the component names and cost figures at the top of its configuration."""
    settings = config["logger"]
    flat = summary["choices"] | {key: summary[key] for key in ("seed", "parameters", "flops_per_token")}
    unsaid = ("hydra.", "logger", "trainer.", "resume", "changing")
    label = ",".join(word for word in summary["overrides"] if not word.startswith(unsaid))
    summary["wandb"] = mode(settings["mode"])
    if "WANDB_SWEEP_ID" in os.environ:  # W&B takes its agent's name for the run, as it must when it is resumed
        summary["id"] = os.environ.get("WANDB_RUN_ID", summary["id"])
    run = begin(
        settings, folder, name=(settings["label"] or label)[:128] or "default", group=settings["group"] or _sweep(folder),
        job_type=settings["job_type"] or "train", tags=list(settings["tags"]), mode=summary["wandb"], id=summary["id"],
        resume="allow", config={**flat, "config": config},
    )
    return WandbLogger(experiment=run)


def begin(settings: Mapping[str, Any], folder: Path, **about: Any) -> wandb.Run:
    """A run of W&B's in a folder. Raises ZooError for a name that W&B refuses."""
    quiet = wandb.Settings(silent=True, console="off", init_timeout=30, x_disable_stats=True)
    try:
        return wandb.init(dir=folder.resolve(), project=settings["project"], entity=settings["entity"], settings=quiet, **about)
    except (wandb.errors.UsageError, ValueError) as error:
        raise ZooError(f"logger: {first_line(error)}") from error


def mode(asked: str) -> str:
    """`online` only where a key is at hand and the server answers; a run must not wait for what may never come."""
    asked = os.environ.get("WANDB_MODE", asked)
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


def _sweep(folder: Path) -> str | None:
    """The sweep that a job's folder lies in, so that its runs form one group."""
    return folder.parent.name if folder.parent.name.startswith("sweep") else None
