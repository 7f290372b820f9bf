"""Measures how the size of activations grows with arch.dim (the coordinate check of Yang 2022)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo import config as configuration
from zoo import models, optim, registry
from zoo.components.residual import Residual
from zoo.errors import ZooError
from zoo.models.roles import SUBLAYERS
from zoo.utils.plots import canvas, logarithmic, power_law_exponent, save
from zoo.utils.progress import doing

SPAN = 30  # the least that an axis of sizes spans, so that what is flat looks flat
Sizes = dict[str, list[float]]  # of each kind of activation, before each step and after the last


def batch_of(config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The first batch of the configured text, as its objective prepares it."""
    from zoo.data import cache
    from zoo.data.dataset import Blocks

    tokenizer, loader = registry.build("tokenizer", config["tokenizer"]), config["loader"]
    corpus = cache.load(registry.build("data", config["data"]), tokenizer, stream=loader["stream"])
    blocks = Blocks(corpus.tokenised_train, loader["length"], isolate=loader["isolate"])
    return objective_of(config).prepare(
        blocks.__getitems__(range(loader["batch_size"])), config["seed"]
    )


def objective_of(config: Mapping[str, Any]) -> Any:
    tokenizer = registry.build("tokenizer", config["tokenizer"])
    return registry.build("objective", config["objective"], tokenizer, config["loader"]["length"])


def sizes(config: Mapping[str, Any], batch: Mapping[str, Tensor], steps: int) -> Sizes:
    """Root mean squares of what the embedding, the sublayers (a mean over the layers), the stack
    and the head give.

    Measured on a batch that the model then learns, `steps` times at the full rate. Raises ZooError
    where one is not finite.
    """
    model, objective = models.build(config, seed=config["seed"]), objective_of(config)
    optimizer = registry.build(
        "optim", config["optim"], optim.parameter_groups(model, config["init"])
    )
    found: dict[str, list[list[float]]] = {}

    def watch(kind: str) -> Any:
        def record(module: nn.Module, inputs: Any, output: Tensor) -> None:
            found.setdefault(kind, [[]])[-1].append(output.detach().square().mean().sqrt().item())

        return record

    for kind, module in _measured(model):
        module.register_forward_hook(watch(kind))
    for _ in range(steps):
        optimizer.zero_grad()
        loss, tokens = objective(model, batch)
        (loss / tokens).backward()
        optimizer.step()
        for each in found.values():
            each.append([])
    with torch.no_grad():
        objective(model, batch)
    means = {kind: [sum(each) / len(each) for each in measured] for kind, measured in found.items()}
    for kind, by_step in means.items():
        if not np.isfinite(by_step).all():
            raise ZooError(
                f"{kind} is no longer finite at arch.dim={config['arch']['dim']} (its sizes by"
                f" step: "
                f"{', '.join(f'{size:.3g}' for size in by_step)}): give a lower optim.lr, or fewer"
                f" --steps"
            )
    return means


def _measured(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """The modules whose outputs are measured, by kind: the embedding, each sublayer, the last
    stack and the head.
    """
    yield "embed", model.embed
    for stack in model.stacks:
        for block in stack.blocks:
            for name, residual in block.named_children():
                if name in SUBLAYERS and isinstance(residual, Residual):
                    yield name, residual.sublayer
    yield "stack", model.stacks[-1]
    yield "logits", model.head


def exponents(by_width: Mapping[int, Sizes]) -> dict[str, float]:
    """By each kind of activation, the p of size ∝ width^p after the last step."""
    widths = list(by_width)
    return {
        kind: power_law_exponent(widths, [sizes[kind][-1] for sizes in by_width.values()])
        for kind in by_width[widths[0]]
    }


def draw(by_width: Mapping[int, Sizes], path: Path) -> None:
    """Draw the sizes over the width, one line per step, in the format that the file's name says."""
    kinds = list(next(iter(by_width.values())))
    figure = canvas(path, 2.6 * len(kinds), 2.8)
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        steps = len(next(iter(by_width.values()))[kind])
        for step in range(steps):
            shade = str(0.75 * (1 - step / max(steps - 1, 1)))
            axes.plot(
                list(by_width),
                [found[kind][step] for found in by_width.values()],
                "o-",
                ms=3,
                color=shade,
                label=f"step {step}",
            )
        logarithmic(axes, list(by_width), title=kind, xlabel="arch.dim")
        low, high = axes.get_ylim()
        wider = max(1.0, (SPAN * low / high) ** 0.5)
        axes.set_ylim(low / wider, high * wider)
    figure.axes[0].set_ylabel("root mean square")
    figure.axes[-1].legend(fontsize="x-small")
    save(figure, path)


def table(by_width: Mapping[int, Sizes]) -> Any:
    from rich.table import Table

    shown, growth = Table(box=None, padding=(0, 2, 0, 0)), exponents(by_width)
    for heading in ("", *(f"dim {width}" for width in by_width), "exponent"):
        shown.add_column(heading, justify="right" if heading else "left")
    for kind, exponent in growth.items():
        shown.add_row(
            kind, *(f"{found[kind][-1]:.3g}" for found in by_width.values()), f"{exponent:+.2f}"
        )
    return shown


def measure(words: Sequence[str], widths: Sequence[int], steps: int) -> dict[int, Sizes]:
    """The sizes of the configured model at each width. Raises ZooError for widths or steps that
    show no growth.
    """
    if len(set(widths)) < 2 or steps < 0:
        raise ZooError("--widths needs two different numbers or more, and --steps at least 0")
    if given := [word for word in words if word.lstrip("+").startswith("arch.dim=")]:
        raise ZooError(
            f"{given[0]} is one width, and these are several: give --widths in its place"
        )
    configs = {
        width: configuration.compose([*words, f"arch.dim={width}"]) for width in sorted(set(widths))
    }
    batch = batch_of(next(iter(configs.values())))
    found = {}
    for width, config in configs.items():
        with doing(f"measuring at arch.dim={width}", stream=sys.stderr):
            found[width] = sizes(config, batch, steps)
    return found
