"""`python probe.py WORDS` trains as zoo.train does; each process writes what it saw into $PROBE.

It also fails, or is signalled, where the environment says so: FAIL=rank names the process that
fails at step 3 of a run with seed 13, SIGNAL=rank the one that is told to stop at step 5, the first
time.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch

from zoo.train import main
from zoo.training import callbacks
from zoo.training import module as lightning_module

PROBE = str(Path(__file__))


def whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def watch(folder: Path) -> None:
    """Write first values, the dropout of each step, and the norm of each gradient as the
    optimiser gets it.
    """
    seen: dict[str, Any] = {"dropout": [], "norms": []}
    began, ended = (
        callbacks.SeedEverything.on_train_batch_start,
        callbacks.LossLogger.on_train_batch_end,
    )
    started = lightning_module.LMModule.on_fit_start

    def first(module: Any) -> None:
        values = {
            name: whole(tensor).detach().clone()
            for name, tensor in module.model.state_dict().items()
        }
        torch.save(values, folder / f"first{module.trainer.global_rank}.pt")
        started(module)

    def dropout(self: Any, trainer: Any, *rest: Any) -> None:
        began(self, trainer, *rest)
        state = torch.get_rng_state()
        seen["dropout"].append(torch.rand(2).tolist())
        torch.set_rng_state(state)

    def norm(module: Any, optimizer: Any) -> None:
        grads = [
            whole(p.grad).double().square().sum()
            for p in module.model.parameters()
            if p.grad is not None
        ]
        seen["norms"] += [torch.stack(grads).sum().sqrt().item()] if grads else []

    def end(self: Any, trainer: Any, module: Any, *rest: Any) -> None:
        ended(self, trainer, module, *rest)
        rank, step = trainer.global_rank, trainer.global_step
        (folder / f"seen{rank}.json").write_text(json.dumps(seen), encoding="utf-8")
        if os.environ.get("FAIL") == str(rank) and module.config["seed"] == 13 and step == 3:
            raise RuntimeError(f"process {rank} broke")
        if os.environ.get("SIGNAL") == str(rank) and step == 5 and not (folder / "told").exists():
            (folder / "told").touch()
            os.kill(os.getpid(), signal.SIGTERM)

    callbacks.SeedEverything.on_train_batch_start = dropout
    callbacks.LossLogger.on_train_batch_end = end
    lightning_module.LMModule.on_fit_start = first
    lightning_module.LMModule.on_before_zero_grad = (
        norm  # of the next step: after the clipping of this one
    )


if __name__ == "__main__":
    if "PROBE" in os.environ:
        place = Path(os.environ["PROBE"])
        place.mkdir(exist_ok=True)
        watch(place)
    main()
