"""Measures how time and memory of a mixer grow with the sequence length."""

from __future__ import annotations

import os
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from rich import console, progress
from rich.table import Column, Table

from zoo import config, cost, errors, models, registry
from zoo.errors import ZooError
from zoo.models.stack import Stack
from zoo.registry import Component
from zoo.utils import plots

BARE: dict[str, Component] = {"norm": "none", "ffn": "none", "residual": "pre", "block": "serial"}
FIGURES = {
    "forward_seconds": "time, forward",
    "training_seconds": "time, training",
    "forward_bytes": "memory, forward",
    "training_bytes": "memory, training",
}
Pass = Callable[[], None]
# of each mixer, each of the figures: its values by length and its exponent
Curves = dict[str, dict[str, Any]]


def passes(words: Sequence[str]) -> dict[str, Callable[[int, bool], Pass]]:
    """By name of each mixer to compare, what makes a pass. Raises ZooError for a wrong override, or
    one that changes no mixer.
    """
    for word in words:
        key = word.partition("=")[0].lstrip("+")
        if (
            key.split(".")[0] not in ("attn", "pos", "model", "size", "arch", "hydra")
            or key == "arch.length"
        ):
            raise ZooError(
                f"{word} changes no mixer: choose attn, pos, arch.dim or arch.heads; --lengths"
                f" says how long"
            )
    made = config.compose(words)
    attn, pos = made["attn"], made["pos"]
    chosen = {attn["name"]: {"attn": attn, "pos": pos}}
    if "backend" in attn:
        backends = (
            [attn["backend"]]
            if any(word.startswith("attn.backend=") for word in words)
            else ["eager", "sdpa"]
        )
        others = [
            name
            for name in registry.entries("attn")
            if "backend" not in registry.resolve("attn", name)
        ]
        chosen = {
            f"{attn['name']}, {backend}": {"attn": attn | {"backend": backend}, "pos": pos}
            for backend in backends
        }
        chosen |= {name: {"attn": name, "pos": "none"} for name in others}
    model = models.build(made, device="meta")
    return {
        name: partial(one_pass, BARE | parts, made["arch"], model.stacks[0].causal)
        for name, parts in chosen.items()
    }


def one_pass(
    parts: Mapping[str, Component],
    arch: Mapping[str, Any],
    causal: bool,
    length: int,
    backward: bool,
) -> Pass:
    """A pass over x (1, length, dim): as in training where it goes backward, else as in
    evaluation.
    """
    stack, draw = (
        Stack(parts, arch["dim"], 1, arch["heads"], length, 0.0, causal=causal),
        torch.Generator().manual_seed(0),
    )
    for parameter in stack.train(backward).parameters():
        torch.nn.init.normal_(parameter, std=arch["dim"] ** -0.5, generator=draw)
    x, gradient = torch.randn(2, 1, length, arch["dim"], generator=draw).unbind()
    x.requires_grad_(backward)

    def run() -> None:
        with torch.set_grad_enabled(backward):
            y = stack(x)
        if backward:
            y.backward(gradient)

    return run


def seconds(run: Pass) -> float:
    """CPU seconds of the process that a pass takes: a median of five, after one to warm up."""
    return statistics.median(timeit.repeat(run, timer=time.process_time, number=1, repeat=6)[1:])


def peak(run: Pass) -> float:
    """The most bytes at once that a pass has of torch's allocator, inside its kernels too, after
    one that leaves gradients.
    """
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "99"
    )  # else the profiler tells of each start and stop
    run()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        run()
    events = cast(Any, profile.profiler).kineto_results.events()
    return float(
        np.cumsum([event.nbytes() for event in events if event.name() == "[memory]"]).max()
    )


def measure(words: Sequence[str], lengths: Sequence[int]) -> Curves:
    """The figures of each mixer at each length, rising. Raises ZooError for too few, and where
    memory ends.
    """
    if len(lengths) < 2 or lengths[0] < 1:
        raise ZooError("--lengths needs two different numbers or more, each at least 1")
    made = passes(words)
    found: dict[str, dict[str, list[float]]] = {
        name: {figure: [] for figure in FIGURES} for name in made
    }
    todo = [(length, name, figure) for length in lengths for name in made for figure in FIGURES]
    for length, name, figure in progress.track(
        todo, "measuring", console=console.Console(stderr=True), transient=True
    ):
        if not sys.stderr.isatty():  # where there is no bar
            print(
                f"measuring {FIGURES[figure]} of {name} at {length:,} …",
                file=sys.stderr,
                flush=True,
            )
        try:
            how = seconds if figure.endswith("seconds") else peak
            found[name][figure].append(how(made[name](length, figure.startswith("training"))))
        except RuntimeError as error:
            raise ZooError(
                f"{name} at length {length}: {errors.first_line(error)}: shorten --lengths"
            ) from error
    return {
        name: {
            figure: {"values": values, "exponent": exponent(lengths, values)}
            for figure, values in each.items()
        }
        for name, each in found.items()
    }


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The p of value ∝ length^p, over the longer half of the lengths (two at least)."""
    start = min(len(lengths) // 2, len(lengths) - 2)
    return plots.power_law_exponent(lengths[start:], values[start:])


def table(lengths: Sequence[int], curves: Curves) -> Table:
    headings = [
        Column(heading, justify="right", no_wrap=True)
        for heading in (*(f"{length:,}" for length in lengths), "exponent")
    ]
    shown = Table(Column(no_wrap=True), *headings, box=None, padding=(0, 1, 0, 0))
    for figure, title in FIGURES.items():
        shown.add_row(f"[bold]{title}")
        for name, each in curves.items():
            values = [
                f"{1e3 * value:.3g} ms" if "seconds" in figure else cost.size(value)
                for value in each[figure]["values"]
            ]
            shown.add_row(f"  {name}", *values, f"{each[figure]['exponent']:.2f}")
    return shown


def draw(figure: Any, lengths: Sequence[int], curves: Curves) -> Any:
    for axes, (kind, title) in zip(figure.subplots(2, 2).flat, FIGURES.items(), strict=True):
        unit, scale = ("ms", 1e3) if "seconds" in kind else ("MiB", 2**-20)
        for name, curve in ((name, each[kind]) for name, each in curves.items()):
            axes.plot(
                lengths,
                scale * np.array(curve["values"]),
                "o-",
                ms=3,
                label=f"{name}: {curve['exponent']:.2f}",
            )
        plots.logarithmic(axes, lengths, title=title, xlabel="sequence length", ylabel=unit)
        axes.legend(fontsize="x-small", title="exponent", title_fontsize="x-small")
    return figure
