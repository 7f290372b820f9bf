"""What a model costs, from its configuration alone: `python -m zoo.cost model=gpt2`.

It is made on the meta device, so that any size takes seconds. `python -m zoo.cost plan
model=llama3_70b gpus=512` gives what is counted to zoo.cost.cluster. FLOPs are of matrix products,
two for a multiply-add, as torch.utils.flop_counter counts them; embeddings are look-ups and count
nothing. A module may declare `flops(length)`, all of its own per token, or `mixing_flops(length)`,
what it does beside its matrices, or `active()`, those of its children that a token passes through;
otherwise every matrix it owns, and every child, is a product with each token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

BACKWARD_AND_FORWARD = 3  # the backward pass is two products for each of the forward's


def flops(module: Any, length: int) -> int:
    """FLOPs of the forward pass per token, in a sequence of this length."""
    from zoo.nn.costs import CountsFlops  # torch is not needed to answer --help
    from zoo.nn.mixer import Mixer

    if isinstance(module, CountsFlops):
        return module.flops(length)
    own = sum(2 * matrix.numel() for matrix in module.parameters(recurse=False) if matrix.ndim == 2)
    mixing = module.mixing_flops(length) if isinstance(module, Mixer) else 0
    return own + mixing + sum(flops(child, length) for child in active_children(module))


def active_children(module: Any) -> Iterable[Any]:
    """The children that a token passes through: all, but where a module (a mixture of experts)
    says which.
    """
    from zoo.nn.costs import ChoosesChildren

    return module.active() if isinstance(module, ChoosesChildren) else module.children()


def parameters(model: Any) -> dict[str, int]:
    """Parameters by part: embedding, position, attention, feed-forward, norms, head; tied
    weights count once, as embedding.
    """
    from zoo.models.roles import roles

    by_part: Counter[str] = Counter()
    role_of = roles(model)
    for name, parameter in model.named_parameters():
        by_part[role_of[name].part] += parameter.numel()
    return dict(by_part)


def inputs(model: Any, tokens: Any) -> dict[str, Any]:
    """What a model is called with, its sequences all being these tokens."""
    names = ("tokens", "decoder_tokens") if model.family == "encoder_decoder" else ("tokens",)
    return dict.fromkeys(names, tokens)


def cache_bytes(model: Any, length: int, itemsize: int = 4) -> int:
    """What generating a sequence of this length keeps, as its mixers say; of an encoder's memory,
    as long, a decoder's part.

    A stack that is not causal sees all tokens at once, and keeps none.
    """
    from zoo.nn.mixer import Mixer

    modules = [module for stack in model.stacks if stack.causal for module in stack.modules()]
    return sum(
        module.cache_bytes(length, itemsize) for module in modules if isinstance(module, Mixer)
    )


def made(config: Mapping[str, Any]) -> Any:
    """The model on the meta device, to be given to the functions below where several are asked."""
    from zoo import models

    return models.build(config, device="meta")


def of(config: Mapping[str, Any], model: Any = None) -> dict[str, Any]:
    """The cost of a configuration: parameters, in all and by part, FLOPs per token, bytes of KV
    cache in float32.
    """
    model = model or made(config)
    length, loader, trainer = config["arch"]["length"], config["loader"], config["trainer"]
    kept = cache_bytes(model, 0)
    by_part = parameters(model)
    total = sum(by_part.values())
    forward = flops(model, loader["length"])
    return {
        "parameters": total,
        "parameters_by_part": by_part,
        "flops_per_token_forward": forward,
        "flops_per_token": BACKWARD_AND_FORWARD * forward,
        "flops_per_token_6n": 6 * total,
        "kv_cache_bytes_per_token": cache_bytes(model, 1) - kept,
        "kv_cache_bytes_per_sequence": kept,
        "kv_cache_bytes": cache_bytes(model, length),
        "length": loader["length"],
        "training_flops": BACKWARD_AND_FORWARD
        * forward
        * loader["batch_size"]
        * loader["length"]
        * trainer["max_steps"],
    }
