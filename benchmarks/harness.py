"""Candidates that measure what surrounds the steps of a run: Lightning, and the sweep of a command.

Lightning stands beside a raw loop with the same model, clipping and schedule.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.candidates import SWEEP_RUNS, SWEEP_STEPS, Family, Loop, Step
from benchmarks.shapes import Shape
from zoo import config, models, optim
from zoo.registry import build
from zoo.tracking import status

ENDLESS = 10**9  # steps: more than are ever taken


def _build(family: Family, shape: Shape) -> tuple[dict[str, Any], Any]:
    sizes = [
        f"loader.batch_size={shape.batch}",
        f"loader.length={shape.length}",
        f"trainer.max_steps={ENDLESS}",
        f"trainer.eval_every={ENDLESS}",
        f"trainer.checkpoint_every={ENDLESS}",
        "logger=none",
        "optim.lr=1e-5",
    ]
    composed = config.compose(
        [f"model={family.overrides[0]}", *family.overrides[1:], *shape.overrides(), *sizes]
    )
    return composed, models.build(composed)


def raw(family: Family, measure: str, shape: Shape) -> Step:
    """One optimiser step, with the gradient clipped and the schedule advanced."""
    composed, model = _build(family, shape)
    batch = family.batch(shape)
    objective = build("objective", family.objective, build("tokenizer", "byte"), shape.length)
    optimiser = build("optim", composed["optim"], optim.parameter_groups(model))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, build("schedule", composed["schedule"], ENDLESS)
    )
    labels = batch["labels"].numel()

    def step() -> torch.Tensor:
        loss = objective(model, batch)[0] / labels
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), composed["trainer"]["clip"])
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
        return loss.detach()

    return step


def lightning(family: Family, measure: str, shape: Shape) -> Loop:
    """The same steps as zoo.train takes them, with its callbacks, metrics.csv and progress bar."""
    from lightning import Callback

    from zoo.training import module as lightning_module
    from zoo.training import trainer
    from zoo.training.callbacks import LossLogger, SeedEverything
    from zoo.training.signals import SignalCheckpoint

    composed, model = _build(family, shape)
    batch = family.batch(shape)

    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield batch

    def loop(pace: Callable[[], None]) -> None:
        class Paced(Callback):
            def on_train_batch_start(self, *_: Any) -> None:
                pace()

        os.environ["FORCE_COLOR"] = "1"  # so that the bar is drawn
        _discard_output()
        sys.stderr.isatty = lambda: True  # type: ignore[method-assign]
        module = lightning_module.LMModule(composed, model, build("tokenizer", "byte"))
        with tempfile.TemporaryDirectory() as folder:
            watch = LossLogger(composed["trainer"]["log_every"], ENDLESS)
            last = SignalCheckpoint(Path(folder, "last.ckpt"), ENDLESS)
            fitting = trainer.build(
                composed, Path(folder), {}, watch, [SeedEverything(0), Paced()], last, 0
            )
            fitting.fit(module, torch.utils.data.DataLoader(Endless(), batch_size=None))

    return Loop(loop)


def sweep(family: Family, measure: str, shape: Shape, *, hydra: bool) -> Step:
    """Runs of several seeds in one process: by the command's multirun, or called directly."""
    from zoo import train
    from zoo.launch.run_spec import RunSpec
    from zoo.training import runner

    text = Path(__file__).with_name("README.md")
    overrides = [
        f"model={family.overrides[0]}",
        *family.overrides[1:],
        *shape.overrides(),
        "arch.vocab=null",
        "data=text",
        f"data.path='{text}'",
        f"loader.batch_size={shape.batch}",
        f"loader.length={shape.length}",
        "logger=none",
        f"trainer.max_steps={SWEEP_STEPS}",
        "trainer.progress=false",
    ]
    _discard_output()

    def step() -> torch.Tensor:
        with tempfile.TemporaryDirectory() as folder:
            if hydra:
                sys.argv = [
                    "zoo.train",
                    "-m",
                    *overrides,
                    f"seed=range({SWEEP_RUNS})",
                    f"hydra.sweep.dir='{folder}'",
                ]
                train.main()
            else:
                for seed in range(SWEEP_RUNS):
                    run_folder = Path(folder, str(seed))
                    run_folder.mkdir()
                    spec = RunSpec(config.compose([*overrides, f"seed={seed}"]), overrides)
                    runner.run(spec, run_folder)
            ended = [status.of(path.parent) for path in Path(folder).glob("*/summary.json")]
        if ended != [status.FINISHED] * SWEEP_RUNS:
            raise RuntimeError(f"the runs ended as {ended}")
        return torch.zeros(1)

    return step


def _discard_output() -> None:
    """Discard what is printed, so that the speed of the terminal is not measured."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
