"""What Lightning, logging and the progress bar cost beside a raw loop with the same model, clipping and schedule."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from zoo import config, models, optim
from zoo.registry import build

ENDLESS = 10**9  # steps


def _made(family: Any, shape: Any) -> tuple[dict[str, Any], Any]:
    sizes = [f"loader.batch_size={shape.batch}", f"loader.length={shape.length}", f"trainer.max_steps={ENDLESS}",
             f"trainer.eval_every={ENDLESS}", f"trainer.checkpoint_every={ENDLESS}", "logger=none", "optim.lr=1e-5"]
    composed = config.compose([f"model={family.words[0]}", *family.words[1:], *shape.words(), *sizes])
    return composed, models.build(composed)


def raw(family: Any, measure: str, shape: Any) -> Callable[[], torch.Tensor]:
    """One optimiser step, with the gradient clipped and the schedule advanced."""
    composed, model = _made(family, shape)
    batch = family.batch(shape)
    objective = build("objective", family.objective, build("tokenizer", "byte"), shape.length)
    optimiser = build("optim", composed["optim"], optim.parameter_groups(model))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, build("schedule", composed["schedule"], ENDLESS))
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
    from zoo import lit, run
    from zoo.callbacks import Last, Streams, Watch

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
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        run.sys.stderr.isatty = lambda: True  # type: ignore[method-assign]
        module = lit.learner(composed, model, build("tokenizer", "byte"))
        with tempfile.TemporaryDirectory() as folder:
            watch = Watch(composed["trainer"]["log_every"], ENDLESS)
            last = Last(Path(folder, "last.ckpt"), ENDLESS)
            trainer = run._trainer(composed, Path(folder), {}, [watch, Streams(0), Paced()], last, 0)
            trainer.fit(module, torch.utils.data.DataLoader(Endless(), batch_size=None))

    return Loop(loop)
