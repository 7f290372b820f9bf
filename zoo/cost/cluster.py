"""Estimates what training on many GPUs takes: bytes on each, seconds per step, days."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from zoo.cost import gpus as known_gpus
from zoo.cost.cluster_plan import Plan
from zoo.errors import ZooError

RESERVED = 0.08  # of a GPU's memory: CUDA's context, NCCL's buffers, fragments
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022
UPDATE = (
    7  # numbers read or written per parameter in AdamW's step: w, g, m, v read; w, m, v written
)
# of a weight (and of what the optimiser keeps of it), its gradient, and of what is computed with
BYTES = {
    "32-true": (4, 4, 4),
    "bf16-mixed": (4, 4, 2),
    "16-mixed": (4, 4, 2),
    "bf16-true": (2, 2, 2),
}


@dataclass(frozen=True)
class Figures:
    """What was counted of a model; bytes are those of one sequence's float32 activations kept
    for the backward pass.
    """

    parameters: int
    states: int  # numbers that the optimiser keeps between steps
    outer: int  # parameters outside the blocks: embedding, head
    block: int  # parameters of the largest block
    flops: float  # per token, forward and backward
    length: int  # tokens per sequence
    stream: float  # bytes of the residual stream
    residuals: int  # sublayers that add to it
    kept: float  # bytes that all blocks keep
    kept_block: float  # that the one which keeps most does
    inputs: float  # bytes of the blocks' inputs, which gradient checkpointing keeps instead
    logits: (
        float  # bytes that head and loss keep, and the gradient with which the backward pass begins
    )


def memory(figures: Figures, plan: Plan) -> dict[str, float]:
    """Bytes on each GPU, by what takes them."""
    weight, gradient, computed = BYTES[plan.precision]
    own, states = figures.parameters / plan.tensor, figures.states / plan.tensor
    gathered = 0.0
    if plan.strategy == "fsdp" and plan.ranks > 1:
        # a block's weights and the next one's, in the precision that is computed with; its gradient
        # before it is scattered
        gathered = (
            figures.outer + 2 * figures.block
        ) / plan.tensor * computed + figures.block / plan.tensor * gradient
        own, states = own / plan.ranks, states / plan.ranks
    elif computed < weight:
        gathered = own * computed  # autocast's copies, which the backward pass needs
    share, whole = plan.micro / plan.tensor, 1 if plan.precision.endswith("mixed") else computed / 4
    kept = figures.inputs + figures.kept_block if plan.checkpointing else figures.kept
    return {
        "weights": own * weight,
        "gradients": own * gradient,
        "optimiser": states * weight,
        "gathered weights": gathered,
        "activations": share * kept * computed / 4,
        "logits": share * figures.logits * whole,
    }


def available(plan: Plan) -> float:
    """Bytes of a GPU that a run can have."""
    return plan.device.memory * (1 - RESERVED)


def helps(figures: Figures, plan: Plan) -> Iterator[tuple[str, float]]:
    """The overrides that would each need less memory, and the bytes per GPU that are then
    needed.
    """
    now, tried = (
        sum(memory(figures, plan).values()),
        {
            "trainer.gradient_checkpointing=true": replace(plan, checkpointing=True),
            "strategy=fsdp": replace(plan, strategy="fsdp"),
            f"gpus={plan.gpus * 2}": replace(plan, gpus=plan.gpus * 2),
            f"micro={max(1, plan.micro // 2)}": replace(plan, micro=max(1, plan.micro // 2)),
        },
    )
    for tensor in (2 * plan.tensor, plan.node):
        if plan.tensor < tensor <= plan.node and plan.gpus % tensor == 0:
            tried[f"tensor={tensor}"] = replace(plan, tensor=tensor)
    for words, other in tried.items():
        needed = sum(memory(figures, other).values())
        if needed < 0.99 * now:
            yield words, needed


def step(figures: Figures, plan: Plan) -> dict[str, float]:
    """Of an optimiser step: micro-batches, tokens, and seconds by what takes them. Raises ZooError
    for too small a batch.

    Traffic is that of ring algorithms. Data parallel: the gradients of a step reduced to all (ddp),
    or of each micro-batch the weights gathered for the forward and the backward pass and the
    gradients scattered (fsdp; Zhao et al. 2023). Tensor parallel: two reductions a sublayer of the
    residual stream (Shoeybi et al. 2019), one more where it is recomputed.
    """
    at_once = plan.ranks * plan.micro * figures.length
    micro_batches = round(plan.batch / at_once)
    if not micro_batches:
        raise ZooError(
            f"batch={plan.batch:.4g} is less than half of the {at_once:,} tokens of one"
            f" micro-batch on"
            f" {plan.ranks:,} data parallel ranks: give a larger batch, a larger tensor, or fewer"
            f" gpus"
        )
    tokens = micro_batches * at_once
    _, gradient, computed = BYTES[plan.precision]
    model = tokens * figures.flops / plan.gpus / plan.device.peak(plan.precision)
    computing = model * (4 / 3 if plan.checkpointing else 1) / (plan.kernels or plan.device.reached)
    shard, passed = figures.parameters / plan.tensor, (plan.ranks - 1) / plan.ranks
    often = 2 * gradient if plan.strategy == "ddp" else micro_batches * (2 * computed + gradient)
    data = shard * passed * often / _bandwidth(plan, plan.ranks, apart=plan.tensor)
    reductions = micro_batches * figures.residuals * (3 if plan.checkpointing else 2)
    stream = figures.stream * plan.micro * computed / 4
    shared = (
        reductions
        * 2
        * stream
        * (plan.tensor - 1)
        / plan.tensor
        / _bandwidth(plan, plan.tensor, apart=1)
    )
    hidden = computing * plan.overlap * (2 / 3 if plan.strategy == "ddp" else 1)
    held = shard / (plan.ranks if plan.strategy == "fsdp" else 1)
    update = held * UPDATE * gradient / plan.device.bandwidth
    exposed = max(0.0, data - hidden)
    whole = model / plan.mfu if plan.mfu else computing + exposed + shared + update
    return {
        "micro_batches": micro_batches,
        "tokens": tokens,
        "computing": computing,
        "data_parallel": data,
        "exposed": exposed,
        "tensor_parallel": shared,
        "update": update,
        "seconds": whole,
        "mfu": model / whole,
    }


def _bandwidth(plan: Plan, ranks: int, apart: int) -> float:
    """Bytes per second of a ring of GPUs, each so far `apart` from the next: NVLink's, or that
    of a node's network cards.
    """
    near = max(1, plan.node // apart)
    link = plan.device.link
    if ranks > near:
        link = min(link, near * (plan.network or plan.device.network))
    return link * plan.wire


def of(figures: Figures, plan: Plan) -> dict[str, Any]:
    """The whole plan, in bytes, seconds, days and GPU hours, with what was assumed."""
    parts, step_cost = memory(figures, plan), step(figures, plan)
    tokens = plan.tokens or TOKENS_PER_PARAMETER * figures.parameters
    seconds = tokens / step_cost["tokens"] * step_cost["seconds"]
    return {
        "memory": parts,
        "memory_bytes": sum(parts.values()),
        "available_bytes": available(plan),
        "step": step_cost,
        "steps": math.ceil(tokens / step_cost["tokens"]),
        "tokens": tokens,
        "flops": tokens * figures.flops,
        "tokens_per_second_per_gpu": step_cost["tokens"] / step_cost["seconds"] / plan.gpus,
        "days": seconds / 86400,
        "gpu_hours": seconds / 3600 * plan.gpus,
        "plan": dataclasses.asdict(plan),
        "assumptions": list(assumptions(plan)),
    }


def assumptions(plan: Plan) -> Iterator[str]:
    device, tensor = plan.device, plan.tensor > 1
    peak, network = device.peak(plan.precision), plan.network or device.network
    yield (
        f"{plan.gpu}: {peak / 1e12:,.4g} TFLOP/s dense in {plan.precision},"
        f" {device.bandwidth / 1e9:,.0f} GB/s,"
        f" {device.memory / 2**30:.0f} GiB of which {RESERVED:.0%} are CUDA's and NCCL's"
    )
    yield (
        f"{device.link / 1e9:,.4g} GB/s within a node of {plan.node}, {network / 1e9:,.4g} GB/s"
        f" per GPU between nodes, of"
        f" which collectives reach {plan.wire:.0%} (wire); no latency"
    )
    if plan.mfu:
        yield (
            f"a step's MFU is {plan.mfu:.1%} as given (mfu), whatever the parts of its time below"
            f" are estimated to be"
        )
    else:
        yield (
            f"computing reaches {plan.kernels or device.reached:.0%} of the peak (kernels),"
            f" recomputation counted"
        )
    hides = "the backward pass" if plan.strategy == "ddp" else "computing"
    yield (
        f"data parallel traffic hides behind {plan.overlap:.0%} of {hides} (overlap), tensor"
        f" parallel traffic behind none"
    )
    if plan.strategy == "fsdp":
        yield (
            "fsdp gathers a block's weights for each pass and scatters its gradients, each"
            " micro-batch, one block ahead"
        )
    else:
        yield "ddp's gradients are views of its buckets"
    if tensor:
        yield (
            "tensor parallel ranks share all activations, norms and logits too (sequence parallel,"
            " Korthikanti 2022)"
        )
    yield "any optimiser's step takes as long as AdamW's"
    yield "activations in bfloat16 or float16 take half of those in float32; the loss is in float32"
    if not plan.tokens:
        yield f"{TOKENS_PER_PARAMETER} tokens per parameter (Hoffmann 2022) are enough"
    yield (
        "attention is counted in full, also its masked half; nothing is lost to restarts,"
        " evaluation or checkpoints"
    )


def refuse_if_too_large(figures: Figures, plan: Plan) -> None:
    """Raises ZooError where a GPU has less memory than is needed, with the words that help and
    by how much.
    """
    needed, there = sum(memory(figures, plan).values()), available(plan)
    if needed <= there:
        return
    words = [
        f"{word} ({less / 2**30:,.1f} GiB)"
        for word, less in sorted(helps(figures, plan), key=lambda pair: pair[1])
    ]
    larger = [
        name
        for name, device in known_gpus.KNOWN.items()
        if device.memory * (1 - RESERVED) >= needed
    ]
    words += [f"gpu={larger[0]}"] if larger else []
    raise ZooError(
        f"{needed / 2**30:,.1f} GiB do not fit the {there / 2**30:,.1f} GiB that a run can have of"
        f" {plan.gpu}: "
        + (f"try {', '.join(words)}, or several of them" if words else "take a smaller model")
    )
