"""Typed trainer, loader and logger options: a wrong choice, type or number is refused while
composing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from annotated_types import Ge, Gt
from hydra.core.config_store import ConfigStore

from zoo.errors import ZooError, did_you_mean
from zoo.options import TOO_LARGE, choice_type, coerce

Count = Annotated[int, Ge(1)]
Precision: Any = choice_type("32-true", "bf16-mixed", "bf16-true", "16-mixed")
Accelerator: Any = choice_type("auto", "cpu", "gpu")
STRATEGIES = ("auto", "ddp", "fsdp")
MOST = 256  # threads or processes, or as many as there are cores
TAG = 64  # characters, which is W&B's limit


@dataclass
class Loader:
    """How the text becomes batches."""

    # sequences per optimiser step, over all ranks and accumulated micro-batches
    batch_size: Count = 16
    length: Count = 256  # tokens per sequence
    # tokens per sequence in evaluation, to see beyond the length trained on; null: the same
    eval_length: Count | None = None
    isolate: bool = False  # hide packed documents from each other, and start positions anew in each
    # data workers; 0 is fastest for text that is in the cache
    workers: Annotated[int, Ge(0)] = 0
    # read and tokenise the train text during training, where it is too large to be tokenised before
    stream: bool = False
    shuffle: Count = 1000  # blocks of a stream that are shuffled together; without stream, all are


@dataclass
class Trainer:
    """How a run trains, and on which devices."""

    max_steps: Count = 300
    # steps between evaluations on the whole validation text; there is always one at the end
    eval_every: Count = 100
    checkpoint_every: Count = 100  # steps between checkpoints/last.ckpt
    log_every: Count = 10  # steps between rows of metrics.csv
    accumulate: Count = 1  # micro-batches per optimiser step
    # the gradient's largest norm; null: no clipping
    clip: Annotated[float, Gt(0)] | None = 1.0
    # skip a step whose loss is this many standard deviations above those before it; null: never
    spike: Annotated[float, Gt(0)] | None = None
    # steps between rows of each block's gradient, weights and update; null: never
    watch_every: Count | None = None
    accelerator: Accelerator = Accelerator.auto
    devices: Count = 1
    nodes: Count = 1
    # auto, ddp (each rank has the whole model), fsdp (each rank has a shard of it)
    strategy: str = "auto"
    precision: Precision = Precision["32-true"]
    compile: bool = False  # torch.compile
    # recompute blocks in the backward pass: less memory, a third more time
    gradient_checkpointing: bool = False
    # keep freed buffers in the process, which saves page faults, and collect garbage less often
    keep_memory: bool = True
    threads: Count | None = None  # CPU threads of each rank; null: torch's choice
    progress: bool = True  # the progress bar, on a terminal
    sample: bool = True  # show generated text at the end


NODES = {"loader": Loader, "trainer": Trainer}


def store() -> None:
    """Put the schemas where conf/config.yaml and conf/trainer/ build on them."""
    ConfigStore.instance().store(group="loader", name="default", node=Loader, provider="zoo")
    ConfigStore.instance().store(group="trainer", name="schema", node=Trainer, provider="zoo")


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run from before some of these options were there: it did what is
    now their default.
    """
    schemas: dict[str, Any] = {
        node: made for node, made in NODES.items() if isinstance(config.get(node), dict)
    }
    return {
        "callbacks": [],
        **config,
        **{
            node: {field.name: field.default for field in fields(made)} | config[node]
            for node, made in schemas.items()
        },
    }


def _known(name: Any, config: Mapping[str, Any]) -> bool:
    """Whether a dotted name is of something in the configuration."""
    node: Any = config
    for part in str(name).split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def typed(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The nodes with values of their schemas' types: what is interpolated, as ${oc.env:STEPS}, was
    not held to them before.

    Raises ZooError for an option that there is not, and for a value that is of no such type.
    """
    found: dict[str, dict[str, Any]] = {}
    for node in NODES:
        if not isinstance(config[node], Mapping):
            raise ZooError(
                f"{node} must have options, as in {{name: value}}, not be {config[node]!r}"
            )
    for node, made in NODES.items():
        _refuse_unknown(node, config[node], [field.name for field in fields(made)])
        found[node] = coerce(made, config[node], f"{node}.")
    return found


def _refuse_unknown(node: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in options:
        if key not in known:
            raise ZooError(f"{node} has no option {key!r}{did_you_mean(key, known)}")


def check(config: Mapping[str, Any]) -> None:
    """Raises ZooError for what no run reads, and for a value that none can have."""
    trainer, loader, logger = config["trainer"], config["loader"], config["logger"]
    changing = config["changing"]
    if not isinstance(changing, list) or not all(isinstance(name, str) for name in changing):
        raise ZooError(
            f"changing must be a list of names, as in changing=[trainer.max_steps], not"
            f" {changing!r}"
        )
    if type(config["seed"]) is not int or not 0 <= config["seed"] < 2**63:
        raise ZooError(f"seed must be a whole number from 0 to 2^63 - 1, not {config['seed']!r}")
    if trainer["strategy"] not in STRATEGIES:
        raise ZooError(
            f"trainer.strategy={trainer['strategy']} is none of {', '.join(STRATEGIES)}"
            f"{did_you_mean(str(trainer['strategy']), STRATEGIES)}"
        )
    for name in changing:
        if not _known(name, config):
            raise ZooError(
                f"changing names {name!r}, which no configuration"
                f" has{did_you_mean(str(name), [*config])}"
            )
    if (trainer["watch_every"] or 0) > trainer["max_steps"]:
        raise ZooError(
            f"trainer.watch_every={trainer['watch_every']} is more than the run's"
            f" trainer.max_steps="
            f"{trainer['max_steps']}, so that nothing would be watched: give fewer steps"
        )
    if loader["stream"] and loader["workers"] > 1:
        raise ZooError(
            f"loader.stream=true reads a text in its order, which one process does: give"
            f" loader.workers=1 or 0, not"
            f" {loader['workers']}"
        )
    if not loader["stream"] and loader["shuffle"] != Loader.shuffle:
        raise ZooError(
            f"loader.shuffle={loader['shuffle']} is about a stream, and without one all blocks are"
            f" shuffled: give"
            " loader.stream=true, or leave it out"
        )
    for name, value in (
        ("trainer.threads", trainer["threads"]),
        ("loader.workers", loader["workers"]),
    ):
        if (value or 0) > max(MOST, os.cpu_count() or 1):
            raise ZooError(
                f"{name}={value} are more than a machine can start: at most"
                f" {max(MOST, os.cpu_count() or 1)}"
            )
    if trainer["precision"] == "16-mixed" and trainer["accelerator"] == "cpu":
        raise ZooError(
            "trainer.precision=16-mixed needs a GPU, not trainer.accelerator=cpu: give"
            " trainer.precision=bf16-mixed"
        )
    if trainer["precision"] == "16-mixed" and trainer["strategy"] == "fsdp":
        raise ZooError(
            "trainer.strategy=fsdp has no trainer.precision=16-mixed: give"
            " trainer.precision=bf16-mixed"
        )
    if trainer["spike"] is not None and trainer["precision"] == "16-mixed":
        raise ZooError(
            "trainer.spike cannot skip a step of trainer.precision=16-mixed, whose loss is scaled:"
            " take bf16-mixed"
        )
    tags = logger.get("tags", [])
    for tag in tags:
        if not 1 <= len(tag) <= TAG:
            raise ZooError(
                f"logger.tags: {tag!r} has {len(tag)} characters, and W&B takes from 1 to {TAG}:"
                f" shorten it"
            )
    project = logger.get("project") or ""
    if len(project) > 128 or set(project) & set("/\\#?%:"):
        raise ZooError(
            f"logger.project={project!r} is no name for W&B: at most 128 characters, without / \\"
            f" # ? % :"
        )
    if config["resume"] not in ("never", "auto"):
        raise ZooError(f"resume must be auto or never, not {config['resume']!r}")
    if trainer["strategy"] == "fsdp" and trainer["compile"]:
        raise ZooError(
            "trainer.strategy=fsdp does not compile: give trainer.compile=false, or"
            " trainer.strategy=ddp"
        )
    for name in ("length", "eval_length"):
        if loader["batch_size"] * (loader[name] or 0) >= TOO_LARGE:
            raise ZooError(
                f"loader.batch_size={loader['batch_size']} sequences of"
                f" loader.{name}={loader[name]} are more tokens"
                f" than a step can have: at most {TOO_LARGE - 1:,}"
            )
    parts = trainer["accumulate"] * trainer["devices"] * trainer["nodes"]
    if loader["batch_size"] % parts:
        raise ZooError(
            f"loader.batch_size={loader['batch_size']} must be a multiple of {parts}"
            " (trainer.accumulate x trainer.devices x trainer.nodes)"
        )
