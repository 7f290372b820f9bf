"""How the members of each group are made and called, so that one from outside that cannot be is
named before any training.

Of each group first the wiring that its members are made with, then what is asked of them: a method
with what it must take (`name=` by name), or an attribute.
"""

from __future__ import annotations

import inspect
from typing import Any

UNWRITTEN = "_forward_unimplemented"  # what torch calls the forward of a module that has none
CONTRACTS: dict[str, tuple[str, ...]] = {
    "arch": (
        "(parts)",
        "forward(tokens, padding_mask, head_fn=, trace=)",
        "family",
        "stacks",
        "limit",
    ),
    "embed": ("(vocab, dim)", "forward(tokens, segments)", "weight"),
    "head": ("(dim, vocab)", "forward(x, embedding)"),
    "norm": ("(dim)", "forward(x)"),
    "residual": ("(sublayer, norm, dropout, depth)", "forward(x, context)"),
    "block": ("(sublayers, wrap)", "forward(x, context)"),
    "pos": (
        "(dim, heads, width, length, causal)",
        "embed(x, positions)",
        "rotate(positions)",
        "bias(queries, keys, device)",
        "asks()",
        "limit",
    ),
    "scaling": ("(width, base)", "__call__(frequencies)", "gain"),
    "attn": ("(dim, heads, causal)", "forward(x, context)", "rotary_dim"),
    "cross": ("(dim, heads)", "forward(x, context)"),
    "ffn": ("(dim)", "forward(x, context)"),
    "init": ("()", "std(shape, role)", "rate(shape, role)", "settle(model)"),
    "optim": ("(groups)", "step()", "state_size(shape, group)"),
    "schedule": ("(steps)", "__call__(step)"),
    "objective": (
        "(tokenizer, length)",
        "__call__(model, batch, trace)",
        "prepare(batch, seed)",
        "evaluate(model, batch)",
        "run_model(model, batch, head_fn)",
        "eval_objective",
        "serves",
        "extra",
    ),
    "data": ("()", "fingerprint()", "splits()"),
    "metric": ("()", "name", "unit", "better", "unigram", "diverged", "share"),
    "callback": (
        "()",
        "setup(trainer, module, stage)",
        "on_train_batch_end(trainer, module, outputs, batch, index)",
    ),
    "logger": ("(config, folder, summary)", "log_metrics(metrics, step)", "finalize(status)"),
    "tokenizer": (
        "()",
        "train(texts)",
        "encode_batch(texts)",
        "byte_lengths()",
        "dumps()",
        "vocab",
        "eot",
    ),
}


def wiring(group: str) -> str:
    """What the members of a group are made with, in words."""
    return CONTRACTS[group][0] if group in CONTRACTS else "its wiring"


def misfit(group: str, made: Any) -> str | None:
    """What a member lacks of that which is asked of its group, as the rest of a sentence about
    it; None where it fits.
    """
    for asked in CONTRACTS.get(group, ())[1:]:
        name, called, _ = asked.partition("(")
        found = made if name == "__call__" else getattr(made, name, None)
        if not called and not hasattr(made, name):
            return f"it has no attribute {name!r}, which each {group} needs"
        if called and (not callable(found) or getattr(found, "__name__", "") == UNWRITTEN):
            return f"it has no {asked}, which each {group} needs"
        if called and (taken := _refuses(found, asked)):
            return f"its {name} must take {asked.removeprefix(name)}, not {taken}"
    return None


def _refuses(method: Any, asked: str) -> str | None:
    """What a method takes, where that is not what it is asked to take."""
    names = [
        name.strip() for name in asked.partition("(")[2].rstrip(")").split(",") if name.strip()
    ]
    try:
        signature = inspect.signature(method)
    except ValueError:  # of a builtin, which says nothing of itself
        return None
    try:
        signature.bind(
            *(name for name in names if name[-1] != "="),
            **{name[:-1]: None for name in names if name[-1] == "="},
        )
    except TypeError:
        return f"({', '.join(signature.parameters)})"
    return None
