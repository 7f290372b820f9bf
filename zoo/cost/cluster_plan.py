"""Options of a training plan on many GPUs: `python -m zoo.cost plan gpus=512`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from zoo.cost import gpus as known_gpus
from zoo.errors import ZooError, did_you_mean
from zoo.options import coerce, in_signs, limits

SUFFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def _word(default: Any, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class Plan:
    """What is asked: the words of `python -m zoo.cost plan`, beside those of a run."""

    gpus: Annotated[int, Ge(1)] = _word(8, "in all")
    gpu: str = _word("h100", ", ".join(known_gpus.KNOWN))
    strategy: str = _word(
        "fsdp", "fsdp (weights, gradients, optimiser sharded) or ddp (a copy each)"
    )
    tensor: Annotated[int, Ge(1)] = _word(
        1, "GPUs that share each matrix (tensor parallel, and sequence parallel within them)"
    )
    node: Annotated[int, Ge(1)] = _word(8, "GPUs of a node, that NVLink connects")
    batch: Annotated[float, Ge(1)] = _word(4e6, "tokens per optimiser step, as in 4M")
    micro: Annotated[int, Ge(1)] = _word(
        1, "sequences of a micro-batch on a GPU (or the `tensor` that share it)"
    )
    tokens: Annotated[float, Ge(1)] | None = _word(
        None, "to train on, as in 15T; null: 20 per parameter"
    )
    mfu: Annotated[float, Gt(0), Le(1)] | None = _word(
        None, "of a whole step, where it was measured; null: estimated"
    )
    kernels: Annotated[float, Gt(0), Le(1)] | None = _word(
        None, "share of the peak that computing reaches; null: the gpu's usual"
    )
    overlap: Annotated[float, Ge(0), Le(1)] = _word(
        0.8, "share of the computing that may hide data parallel traffic"
    )
    wire: Annotated[float, Gt(0), Le(1)] = _word(
        0.8, "share of a link's bandwidth that collectives reach"
    )
    network: Annotated[float, Ge(1)] | None = _word(
        None, "bytes per second between nodes, per GPU; null: the gpu's usual"
    )
    # these two are a run's words: trainer.precision, trainer.gradient_checkpointing
    precision: str = "bf16-mixed"
    checkpointing: bool = False

    @property
    def ranks(self) -> int:
        """Of data parallelism."""
        return self.gpus // self.tensor

    @property
    def device(self) -> known_gpus.Device:
        return known_gpus.named(self.gpu)


WORDS = [option.name for option in fields(Plan) if option.metadata]


def help_lines() -> Iterator[str]:
    """A line for each word of a plan."""
    bounds = limits(Plan)
    for option in fields(Plan):
        if option.metadata:
            default = {"None": "null", "4000000.0": "4M"}.get(str(option.default), option.default)
            about = option.metadata["about"] + in_signs(bounds.get(option.name, {}))
            yield f"  {option.name}={default}".ljust(20) + about


INSTEAD = {  # what a run is told by, of which a plan has words of its own
    "trainer": "strategy=",
    "trainer.strategy": "strategy=",
    "trainer.devices": "gpus= and node=",
    "trainer.nodes": "gpus=",
    "loader.batch_size": "batch= (tokens)",
    "trainer.accumulate": "micro=",
}


def parse(words: Sequence[str], precision: str, checkpointing: bool) -> Plan:
    """The plan of these words (key=value). Raises ZooError for one that has no meaning."""
    given: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if not value.strip():
            raise ZooError(f"{word} has no value: give {key}=...")
        match = re.fullmatch(r"(\d+\.?\d*|\.\d+)([kKMBT])", value)
        given[key] = (
            float(match[1]) * SUFFIXES[match[2]] if match else None if value == "null" else value
        )
    plan = Plan(**{**coerce(Plan, given), "precision": precision, "checkpointing": checkpointing})
    check(plan)
    return plan


def check(plan: Plan) -> None:
    """Raises ZooError for numbers that no cluster has."""
    known_gpus.named(plan.gpu)
    if plan.strategy not in ("fsdp", "ddp"):
        raise ZooError(
            f"strategy must be fsdp or ddp, not"
            f" {plan.strategy!r}{did_you_mean(plan.strategy, ('fsdp', 'ddp'))}"
        )
    if plan.gpus % plan.tensor:
        raise ZooError(f"gpus={plan.gpus} must be a multiple of tensor={plan.tensor}")
