"""Checks that a model can be trained with its run's objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zoo.errors import ZooError
from zoo.registry import build, entries

if TYPE_CHECKING:
    from zoo.models.families import Model


def check(config: Mapping[str, Any], model: Model) -> None:
    """Raise ZooError if a model cannot serve its run's objective; says what to choose instead."""
    from zoo.nn.mixer import refuse_ignored

    loader, name = config["loader"], config["objective"]["name"]
    tokenizer = build("tokenizer", config["tokenizer"])
    objective = build("objective", config["objective"], tokenizer, loader["length"])
    if model.family != objective.serves:
        fitting = [
            other
            for other in sorted(entries("objective"))
            if build("objective", other, tokenizer, 64).serves == model.family
        ]
        raise ZooError(
            f"objective={name} trains arch={objective.serves}, not arch={config['arch']['name']}:"
            f" choose objective={' or '.join(fitting)}, or arch={objective.serves}"
        )
    vocab = config["arch"]["vocab"]
    if model.head.width != vocab or not getattr(model.head, "of_tokens", True):
        raise ZooError(
            f"objective={name} needs a logit for each of {vocab} tokens, and"
            f" head={config['head']['name']} gives {model.head.width} other numbers: choose"
            " head=linear or head=transform"
        )
    if vocab < tokenizer.vocab + objective.extra:
        more = f" ids and the {objective.extra} more of objective={name}" if objective.extra else ""
        raise ZooError(
            f"arch.vocab={vocab} is smaller than the tokenizer's {tokenizer.vocab}{more}"
        )
    if objective.serves == "encoder_decoder":
        if loader["eval_length"] not in (None, loader["length"]):
            raise ZooError(
                f"objective={name} is made for blocks of one length: leave loader.eval_length out"
            )
        if loader["isolate"]:
            raise ZooError(
                f"objective={name} cannot keep the documents of a block apart: choose"
                " loader.isolate=false"
            )
    needs = {"padding": objective.may_pad, "documents": loader["isolate"]}
    for stack in model.stacks:
        refuse_ignored([need for need, needed in needs.items() if needed], stack.honoured)
