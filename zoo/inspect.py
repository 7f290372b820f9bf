"""`python -m zoo.inspect complexity attn=gqa pos=rope`: how time and memory of a mixer grow with the sequence length.

Softmax attention by each way of computing it, beside the mixers that have no such choice (recurrent ones). Each stands alone
in a residual, with its position and one sequence, without norms and feed-forward. Time is CPU seconds of the process, a median
of five passes after one to warm up; memory is the most that a pass holds at once beside weights, inputs and gradients kept.
An exponent is the p of figure ∝ length^p, over the longer half of the lengths.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import rich
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from zoo import config as configuration
from zoo import coordinates, cost, memory, models, registry
from zoo.registry import Component, ZooError, plainly
from zoo.stack import Stack

BARE: dict[str, Component] = {"norm": "none", "ffn": "none", "residual": "pre", "block": "serial"}
FIGURES = {"forward_seconds": "time, forward", "training_seconds": "time, forward and backward",
           "forward_bytes": "peak memory, forward", "training_bytes": "peak memory, forward and backward"}
Pass = Callable[[], None]
Curves = dict[str, dict[str, Any]]  # of each mixer, each of the figures: its values by length and its exponent


def passes(words: Sequence[str]) -> dict[str, Callable[[int, bool], Pass]]:
    """By name of each mixer to compare, what makes a pass; ZooError for a word that is wrong or that changes no mixer."""
    for word in words:
        key = word.partition("=")[0].lstrip("+")
        if key.split(".")[0] not in ("attn", "pos", "model", "size", "arch", "hydra") or key == "arch.length":
            raise ZooError(f"{word} changes no mixer: choose attn, pos, arch.dim or arch.heads; --lengths says how long")
    config = configuration.compose(words)
    attn, pos = config["attn"], config["pos"]
    chosen: dict[str, dict[str, Component]] = {attn["name"]: {"attn": attn, "pos": pos}}
    if "backend" in attn:
        backends = [attn["backend"]] if any(word.startswith("attn.backend=") for word in words) else ["eager", "sdpa"]
        others = [name for name in registry.entries("attn") if "backend" not in registry.resolve("attn", name)]
        chosen = {f"{attn['name']}, {backend}": {"attn": attn | {"backend": backend}, "pos": pos} for backend in backends}
        chosen |= {name: {"attn": name, "pos": "none"} for name in others}
    causal = models.build(config, device="meta").stacks[0].causal
    return {name: partial(one_pass, BARE | parts, config["arch"], causal) for name, parts in chosen.items()}


def one_pass(parts: Mapping[str, Component], arch: Mapping[str, Any], causal: bool, length: int, backward: bool) -> Pass:
    """A pass over x (1, length, dim): as in training where it goes backward, else as in evaluation."""
    stack, draw = Stack(parts, arch["dim"], 1, arch["heads"], length, 0.0, causal=causal), torch.Generator().manual_seed(0)
    for parameter in stack.train(backward).parameters():
        nn.init.normal_(parameter, std=arch["dim"] ** -0.5, generator=draw)
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
    """The most bytes at once that a pass has of torch's allocator, inside its kernels too, after one that leaves gradients."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler tells of each start and stop
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events: Any = profile.profiler
    return float(np.cumsum([e.nbytes() for e in events.kineto_results.events() if e.name() == "[memory]"]).max())


def measure(words: Sequence[str], lengths: Sequence[int]) -> Curves:
    """The figures of each mixer at each length, rising. Raises ZooError where memory ends."""
    made = passes(words)
    found: Curves = {name: {figure: {"values": []} for figure in FIGURES} for name in made}
    todo = [(length, name, figure) for length in lengths for name in made for figure in FIGURES]
    for length, name, figure in track(todo, "measuring", console=Console(stderr=True), transient=True):
        try:
            run = made[name](length, figure.startswith("training"))
            found[name][figure]["values"].append(seconds(run) if figure.endswith("seconds") else peak(run))
        except RuntimeError as error:
            raise ZooError(f"{name} at length {length}: {registry.first_line(error)}: shorten --lengths") from error
    for curve in (curve for curves in found.values() for curve in curves.values()):
        curve["exponent"] = exponent(lengths, curve["values"])
    return found


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The p of value ∝ length^p: a least-squares line through the logarithms, over the longer half (two at least)."""
    half = max(2, (len(lengths) + 1) // 2)
    return float(np.polyfit(np.log(lengths[-half:]), np.log(values[-half:]), 1)[0])


def table(lengths: Sequence[int], curves: Curves) -> Table:
    shown = Table("", box=None, padding=(0, 2, 0, 0))
    for heading in (*(f"{length:,}" for length in lengths), "exponent"):
        shown.add_column(heading, justify="right")
    for figure, title in FIGURES.items():
        shown.add_row(f"[bold]{title}")
        for name, curve in ((name, each[figure]) for name, each in curves.items()):
            values = [f"{1e3 * value:.3g} ms" if "seconds" in figure else cost.size(value) for value in curve["values"]]
            shown.add_row(f"  {name}", *values, f"{curve['exponent']:.2f}")
    return shown


def draw(figure: Any, lengths: Sequence[int], curves: Curves) -> None:
    """A panel for each kind of figure, with the exponents in its legend."""
    for axes, (kind, title) in zip(figure.subplots(2, 2).flat, FIGURES.items(), strict=True):
        unit, scale = ("ms", 1e3) if "seconds" in kind else ("MiB", 2**-20)
        for name, curve in ((name, each[kind]) for name, each in curves.items()):
            axes.plot(lengths, scale * np.array(curve["values"]), "o-", ms=3, label=f"{name}: {curve['exponent']:.2f}")
        coordinates.logarithmic(axes, lengths, title=title, xlabel="sequence length", ylabel=unit)
        axes.legend(fontsize="x-small", title="exponent", title_fontsize="x-small")


@plainly()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.inspect", description=(__doc__ or "").split("\n\n", 1)[1])
    parser.add_argument("what", choices=["complexity"], help="what is looked at")
    parser.add_argument("words", nargs="*", metavar="WORD=VALUE", help="as for zoo.train: attn=gqa pos=rope arch.dim=256"
                        " arch.heads=8 arch=encoder; attn.backend=sdpa shows this backend alone beside the recurrent ones")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048], help="in tokens")
    parser.add_argument("--out", type=Path, help="draw it, as .svg, .png or .pdf; needs pip install -e '.[report]'")
    parser.add_argument("--json", action="store_true", help="for programs: seconds, bytes and exponents")
    asked = parser.parse_intermixed_args()
    lengths = sorted(set(asked.lengths))
    if len(lengths) < 2 or lengths[0] < 1:
        raise ZooError("--lengths needs two different numbers or more, each at least 1")
    figure = coordinates.canvas(asked.out, 9, 7) if asked.out else None
    memory.keep_freed()
    curves = measure(asked.words, lengths)
    if figure:
        draw(figure, lengths, curves)
        coordinates.keep(figure, asked.out)
    if asked.json:
        print(json.dumps({"lengths": lengths, "mixers": curves}, indent=2))
    else:
        rich.print(table(lengths, curves))


if __name__ == "__main__":
    main()
