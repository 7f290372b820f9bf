"""What surrounds the steps of a run: Lightning beside a raw loop with the same model, clipping and schedule, and a sweep."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from zoo import config, models, optim
from zoo.registry import build
from zoo.utils import files

ENDLESS = 10**9  # steps
RUNS = 4  # of a sweep
STEPS = 200  # of each run


def _made(family: Any, shape: Any) -> tuple[dict[str, Any], Any]:
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
        [f"model={family.words[0]}", *family.words[1:], *shape.words(), *sizes]
    )
    return composed, models.build(composed)


def raw(family: Any, measure: str, shape: Any) -> Callable[[], torch.Tensor]:
    """One optimiser step, with the gradient clipped and the schedule advanced."""
    composed, model = _made(family, shape)
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


def lightning(family: Any, measure: str, shape: Any) -> Any:
    """The same steps as zoo.train takes them: its callbacks, a row of metrics.csv every ten steps, the bar drawn."""
    from lightning import Callback

    from benchmarks.suites import Loop
    from zoo.training import module as lightning_module
    from zoo.training import trainer
    from zoo.training.callbacks import LossLogger, SeedEverything
    from zoo.training.signals import SignalCheckpoint

    composed, model = _made(family, shape)
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
        _silent()
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


def sweep(family: Any, measure: str, shape: Any, *, hydra: bool) -> Callable[[], torch.Tensor]:
    """Runs that differ in their seed: by the command's multirun, or by calling what it calls, in one process as well."""
    from zoo import train
    from zoo.training import runner

    text = Path(__file__).with_name("README.md")
    words = [
        f"model={family.words[0]}",
        *family.words[1:],
        *shape.words(),
        "arch.vocab=null",
        "data=text",
        f"data.path='{text}'",
        f"loader.batch_size={shape.batch}",
        f"loader.length={shape.length}",
        "logger=none",
        f"trainer.max_steps={STEPS}",
        "trainer.progress=false",
    ]
    _silent()

    def step() -> torch.Tensor:
        with tempfile.TemporaryDirectory() as folder:
            if hydra:
                sys.argv = [
                    "zoo.train",
                    "-m",
                    *words,
                    f"seed=range({RUNS})",
                    f"hydra.sweep.dir='{folder}'",
                ]
                train.main()
            else:
                for seed in range(RUNS):
                    place = Path(folder, str(seed))
                    place.mkdir()
                    runner.run(config.compose([*words, f"seed={seed}"]), place, words)
            done = [files.read_json(path)["status"] for path in Path(folder).glob("*/summary.json")]
        if done != ["finished"] * RUNS:
            raise RuntimeError(f"the runs ended as {done}")
        return torch.zeros(1)

    return step


def _silent() -> None:
    """What is printed goes nowhere, so that a terminal's speed is no part of the figure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
