"""Whether a run has room: what it will need by the cost model, what there is, and which words
would help, by how much.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from zoo import cost, registry
from zoo.config import schema
from zoo.cost import size
from zoo.errors import ZooError
from zoo.utils import system

NO_ROOM = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "Unable to allocate",
)  # as torch and numpy say it


def free(graphics: bool) -> float | None:
    """Bytes that this process could still take, on the GPU or of the machine; None where it is
    not told.
    """
    return float(torch.cuda.mem_get_info()[0]) if graphics else system.free_memory()


def helps(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The words that would each need less, and the bytes that then are needed, by the same
    estimate; the most helpful first.
    """
    loader, trainer = config["loader"], config["trainer"]
    tried: dict[str, Any] = {
        "trainer.gradient_checkpointing": True,
        "trainer.precision": "bf16-mixed",
        "optim": "adafactor",
        "trainer.accumulate": 2 * trainer["accumulate"],
        "loader.batch_size": loader["batch_size"] // 2,
        "loader.length": loader["length"] // 2,
    }
    now, found = cost.training_memory(config), []
    for word, value in tried.items():
        changed = copy.deepcopy(dict(config))
        node, _, key = word.partition(".")
        if key:
            changed[node][key] = value
        else:
            changed[node] = registry.resolve(node, value)
        with contextlib.suppress(
            ZooError
        ):  # a batch that cannot be divided, a model that the optimiser is not for
            schema.check(changed | schema.typed(changed))
            found.append((f"{word}={str(value).lower()}", cost.training_memory(changed)))
    yield from sorted((pair for pair in found if pair[1] < 0.99 * now), key=lambda pair: pair[1])


def advice(config: Mapping[str, Any]) -> str:
    """What helps, as the end of a sentence."""
    told = [f"{words} ({size(needed)})" for words, needed in helps(config)]
    return (
        f"what would help, and what then is needed: {', '.join(told)}"
        if told
        else "choose a smaller model"
    )


def compared(config: Mapping[str, Any], model: Any = None) -> tuple[dict[str, Any], str | None]:
    """What a run will need and what is free, in bytes, and a sentence where that is not enough;
    `model` as in zoo.cost.figures.

    Raises ZooError where the weights alone are more, of which a machine ends a process without a
    word.
    """
    graphics = config["trainer"]["accelerator"] != "cpu" and torch.cuda.is_available()
    by_part, there = cost.memory(config, model), free(graphics)
    needed = int(sum(by_part.values()))
    figures = {"needed_bytes": needed, "free_bytes": there}
    if there is None or needed <= there:
        return figures, None
    told = f"this run needs about {size(needed)}, and {size(there)} are free; {advice(config)}"
    if by_part["weights"] > there:
        raise ZooError(told)
    return figures, told


@contextlib.contextmanager
def told_of(config: Mapping[str, Any]) -> Iterator[None]:
    """Where the memory is not enough, a ZooError that says what would help, instead of what
    torch says.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_lack(error):
            raise
        needed = size(cost.training_memory(config))
        raise ZooError(
            f"out of memory (this run needs about {needed}); {advice(config)}"
        ) from error


def is_lack(error: BaseException) -> bool:
    """Whether an error says that the memory is not enough; torch's own is a RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in str(error) for words in NO_ROOM
    )
