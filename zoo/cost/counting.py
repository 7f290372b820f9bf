"""What a model costs, from its configuration alone: `python -m zoo.cost model=gpt2`.

It is made on the meta device, so that any size takes seconds. `python -m zoo.cost plan model=llama3_70b gpus=512` gives what is
counted to zoo.cost.cluster.
FLOPs are of matrix products, two for a multiply-add, as torch.utils.flop_counter counts them; embeddings are look-ups and
count nothing. A module may declare `flops(length)`, all of its own per token, or `mixing_flops(length)`, what it does beside
its matrices, or `active()`, those of its children that a token passes through; otherwise every matrix it owns, and every
child, is a product with each token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from zoo.cost import cluster
from zoo.registry import build

Replaced = tuple[dict[str, Any], str, Any]  # a module's tensors, and of one its name and itself
BACKWARD_AND_FORWARD = 3  # the backward pass is two products for each of the forward's


def flops(module: Any, length: int) -> int:
    """FLOPs of the forward pass a token, in a sequence of this length."""
    if hasattr(module, "flops"):
        return module.flops(length)
    own = sum(2 * matrix.numel() for matrix in module.parameters(recurse=False) if matrix.ndim == 2)
    mixing = module.mixing_flops(length) if hasattr(module, "mixing_flops") else 0
    return own + mixing + sum(flops(child, length) for child in active_children(module))


def active_children(module: Any) -> Iterable[Any]:
    """The children that a token passes through: all, but where a module (a mixture of experts) says which."""
    return module.active() if hasattr(module, "active") else module.children()


def parameters(model: Any) -> dict[str, int]:
    """Parameters by part: embedding, position, attention, feed-forward, norms, head; tied weights count once, as embedding."""
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
    """What generating a sequence of this length keeps, as its mixers say; of an encoder's memory, as long, a decoder's part.

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
    """The cost of a configuration: parameters, in all and by part, FLOPs a token, bytes of KV cache in float32."""
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


def figures(config: Mapping[str, Any], model: Any = None, sequences: int = 1) -> cluster.Figures:
    """What zoo.cost.cluster needs to know of a model, counted with a micro-batch of this many sequences.

    The forward pass is run on fake tensors of the CPU, which choose the kernels of real ones and hold no memory. A model that
    is given, on the meta device, has its own tensors back at the end.
    """
    import numpy as np
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from zoo import optim
    from zoo.components.residual import Residual
    from zoo.data.dataset import Blocks
    from zoo.data.tokens import Tokens
    from zoo.objectives import loss

    loader = config["loader"]
    kept: dict[int, tuple[int, Any]] = {}  # bytes by storage, and the block that kept it first
    inputs: list[torch.Tensor] = []
    within: list[Any] = [None]

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept.setdefault(x.untyped_storage()._cdata, (x.untyped_storage().nbytes(), within[-1]))
        keep.append(x)  # else a storage's id may be used again
        return x

    def enter(block: Any, given: Any) -> None:
        within.append(block)
        inputs.append(given[0])

    keep: list[torch.Tensor] = []
    tokenizer = build("tokenizer", config["tokenizer"])
    objective = build("objective", config["objective"], tokenizer, loader["length"])
    ids = np.zeros(sequences * loader["length"] + 1, dtype=np.int64)
    real = objective.prepare(
        Blocks(
            Tokens(ids, ids[:1], 0, tokenizer.eot), loader["length"], isolate=loader["isolate"]
        ).__getitems__(range(sequences)),
        config["seed"],
    )
    model = model or made(config)
    states = optim.state_size(model, config["optim"], config["init"])
    blocks = [block for stack in model.stacks for block in stack.blocks]
    total = sum(parameter.numel() for parameter in model.parameters())
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    forward = flops(model, loader["length"])
    hooks = [block.register_forward_pre_hook(enter) for block in blocks]
    hooks += [block.register_forward_hook(lambda *_: within.pop() and None) for block in blocks]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    replaced: list[Replaced] = []
    with mode as fake, torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        _pretend(model, replaced)
        own = {p.untyped_storage()._cdata for p in model.parameters()}
        given = {name: fake.from_tensor(tensor) for name, tensor in real.items()}
        hidden = pack(objective.run_model(model, given, lambda hidden, head, embedding: hidden))
    for hook in hooks:
        hook.remove()
    for tensors, name, tensor in replaced:
        tensors[name] = tensor
    by_block: dict[Any, int] = dict.fromkeys([None, *blocks], 0)
    for storage, (size, block) in kept.items():
        by_block[block] += 0 if storage in own else size
    # logits and their logarithms, then these and their gradient, while all the rest is still there
    logits = (
        2
        * min(len(hidden), loss.positions_at_once(config["arch"]["vocab"]))
        * config["arch"]["vocab"]
        * 4
    )
    outside = by_block.pop(None) + logits
    stream = max(x.numel() * x.element_size() for x in inputs)
    return cluster.Figures(
        total,
        states,
        total - sum(sizes),
        max(sizes),
        BACKWARD_AND_FORWARD * forward,
        loader["length"],
        stream / sequences,
        sum(isinstance(module, Residual) for module in model.modules()),
        sum(by_block.values()) / sequences,
        max(by_block.values()) / sequences,
        sum(x.numel() * x.element_size() for x in inputs) / sequences,
        outside / sequences,
    )


def layout(config: Mapping[str, Any]) -> cluster.Plan:
    """How the words of a run place it: on how many devices, in what precision, how much of the batch on each at once."""
    loader, trainer = config["loader"], config["trainer"]
    gpus = trainer["devices"] * trainer["nodes"]
    return cluster.Plan(
        gpus=gpus,
        strategy="fsdp" if "fsdp" in trainer["strategy"] else "ddp",
        precision=trainer["precision"],
        checkpointing=trainer["gradient_checkpointing"],
        micro=max(1, loader["batch_size"] // (trainer["accumulate"] * gpus)),
    )


def memory(config: Mapping[str, Any], model: Any = None) -> dict[str, float]:
    """Bytes on each device that a run needs, by what takes them; see `figures` for a model that is given."""
    plan = layout(config)
    return cluster.memory(figures(config, model, plan.micro), plan)


def training_memory(config: Mapping[str, Any], model: Any = None) -> int:
    """Bytes of weights, gradients, optimiser, and of what one micro-batch's forward pass keeps for the backward."""
    return int(sum(memory(config, model).values()))


def _pretend(module: Any, replaced: list[Replaced]) -> None:
    """Give what a token passes through fake tensors of the CPU (not every expert: a mixture can have tens of thousands)."""
    import torch

    for tensors in (module._parameters, module._buffers):
        for name, tensor in tensors.items():
            if tensor is not None:
                empty = torch.empty_like(tensor, device="cpu")
                replaced.append((tensors, name, tensor))
                tensors[name] = (
                    torch.nn.Parameter(empty) if isinstance(tensor, torch.nn.Parameter) else empty
                )
    for child in active_children(module):
        _pretend(child, replaced)


def table(cost: Mapping[str, Any], title: str) -> Any:
    """The cost as a table for people."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(
        title=Text(title), title_justify="left", show_header=False, box=None, padding=(0, 2)
    )
    shown.add_row("parameters", f"{cost['parameters']:,}")
    for part, number in cost["parameters_by_part"].items():
        shown.add_row(f"  {part}", f"{number:,}", f"{number / cost['parameters']:.1%}")
    shown.add_row(
        "FLOPs a token", f"{cost['flops_per_token']:.4g}", f"training, at length {cost['length']:,}"
    )
    shown.add_row(
        "  6·N estimate", f"{cost['flops_per_token_6n']:.4g}", "N parameters, embeddings included"
    )
    shown.add_row("  forward", f"{cost['flops_per_token_forward']:.4g}")
    shown.add_row("training FLOPs", f"{cost['training_flops']:.4g}", "all steps")
    shown.add_row("KV cache", size(cost["kv_cache_bytes"]), "a sequence of arch.length, float32")
    shown.add_row("  per token", size(cost["kv_cache_bytes_per_token"]))
    if cost["kv_cache_bytes_per_sequence"]:
        shown.add_row(
            "  at any length", size(cost["kv_cache_bytes_per_sequence"]), "recurrent states"
        )
    shown.add_row(
        "training memory",
        size(cost["training_memory_bytes"]),
        "weights, gradients, optimiser, activations",
    )
    return shown


def size(number: float) -> str:
    """Bytes in the unit a person would choose."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.4g} {unit}"
        number /= 1024
    return f"{number:,.4g} TiB"
