"""Measure GPT-2 on a GPU in bfloat16: its MFU, beside the floor, transformers and a matmul.

    python -m benchmarks.gpu --batch 16

The candidates share the GPU and take turns; a ratio to the floor is taken within each repeat. MFU
(Chowdhery 2022) is relative to the peak in zoo/cost/gpus.py; the ceiling is what one large matmul
reaches in the same run. Before anything is timed, the zoo's first losses must be the floor's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks import floor, peers
from benchmarks.candidates import GPT, LR, Step, training
from benchmarks.shapes import Shape
from zoo import cost, optim
from zoo.cost import gpus
from zoo.registry import build

GPT2 = Shape(layers=12, dim=768, heads=12, length=1024, vocab=50_304, batch=16)
TOLERANCE = 1e-2  # relative, of losses in bfloat16
WARM_UP = 5  # steps, of which the first compiles


def steps(shape: Shape, device: torch.device, compiled: bool) -> Iterator[tuple[str, Step]]:
    """The name and the training step of each candidate, in bfloat16 by autocast."""

    def step(loss: Callable[[], Tensor], optimiser: torch.optim.Optimizer) -> Step:
        mixed = torch.autocast(device.type, torch.bfloat16)(loss)
        return training(torch.compile(mixed) if compiled else mixed, optimiser)

    model = GPT.model(shape)
    batch = {name: tensor.to(device) for name, tensor in GPT.batch(shape).items()}
    weights = {
        name: weight.detach().to(device).requires_grad_()
        for name, weight in floor.trainable_copy(model).items()
    }
    by_hand = floor.gpt(weights, shape.heads)
    yield "floor", step(lambda: floor.loss(by_hand(batch), batch), floor.adamw(weights, LR))
    model = model.to(device)
    objective = build("objective", GPT.objective, build("tokenizer", "byte"), shape.length)
    adamw = build("optim", {"name": "adamw", "lr": LR}, optim.parameter_groups(model))
    yield "zoo", step(lambda: objective(model, batch)[0] / batch["labels"].numel(), adamw)
    try:
        peer = peers.gpt2(shape)
    except ImportError:
        return
    theirs = peer.model.to(device)
    yield (
        "transformers",
        step(
            lambda: floor.loss(peer.logits(batch), batch),
            floor.adamw(dict(theirs.named_parameters()), LR),
        ),
    )


def seconds(step: Step, device: torch.device, times: int) -> float:
    """Seconds per step, over this many steps; the device is idle before and after them."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begun = time.perf_counter()
    for _ in range(times):
        step()
    wait()
    return (time.perf_counter() - begun) / times


def ceiling(device: torch.device, size: int) -> float:
    """FLOP/s of a square matmul in bfloat16."""
    left = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    right = torch.randn(size, size, device=device, dtype=torch.bfloat16)

    def matmul() -> Tensor:
        return left @ right

    seconds(matmul, device, 3)
    return 2 * size**3 / min(seconds(matmul, device, 10) for _ in range(5))


def measured(
    shape: Shape,
    device: torch.device,
    *,
    compiled: bool = True,
    repeats: int = 9,
    times: int = 10,
    size: int = 8192,
) -> dict[str, Any]:
    """Milliseconds, ratio to the floor, tokens/s and FLOP/s of each candidate; and the ceiling."""
    made = dict(steps(shape, device, compiled))
    losses = {name: [step().item() for _ in range(WARM_UP)] for name, step in made.items()}
    for ours, expected in zip(losses["zoo"], losses["floor"], strict=True):
        if not abs(ours - expected) <= TOLERANCE * expected:
            raise ValueError(f"the zoo's loss is {ours}, and the floor's {expected}")
    spent = [
        {name: seconds(step, device, times) for name, step in made.items()} for _ in range(repeats)
    ]
    tokens = shape.batch * shape.length
    flops = cost.BACKWARD_AND_FORWARD * cost.flops(GPT.model(shape), shape.length)
    candidates: dict[str, Any] = {}
    for name in made:
        median = statistics.median(each[name] for each in spent)
        candidates[name] = {
            "ms": 1e3 * median,
            "ratio": statistics.median(each[name] / each["floor"] for each in spent),
            "tokens_per_second": tokens / median,
            "flops_per_second": tokens * flops / median,
        }
    return {"candidates": candidates, "ceiling": ceiling(device, size)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--batch", type=int, default=GPT2.batch, help="sequences of 1,024 tokens")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--json", action="store_true", help="for programs")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this machine has no GPU")
    name = torch.cuda.get_device_name()
    gpu = gpus.found(name)
    shape = replace(GPT2, batch=arguments.batch)
    results = measured(shape, torch.device("cuda"), compiled=not arguments.eager)
    if arguments.json:
        print(json.dumps(results | {"device": name}, indent=2))
        return
    mode = "eager" if arguments.eager else "compiled"
    table = Table(title=f"{name}, torch {torch.__version__}, bfloat16, {mode}", box=None)
    for heading in ("", "ms per step", "ratio", "tokens/s", "TFLOP/s", "MFU", "of the ceiling"):
        table.add_column(heading, justify="right" if heading else "left")
    for candidate, row in results["candidates"].items():
        speed = row["flops_per_second"]
        table.add_row(
            candidate,
            f"{row['ms']:.1f}",
            f"{row['ratio']:.3f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{speed / 1e12:.1f}",
            f"{speed / gpu.half:.1%}" if gpu else "",
            f"{speed / results['ceiling']:.1%}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
