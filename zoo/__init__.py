"""A zoo of interchangeable transformer components, and a harness that says what each of them is
worth.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

__version__ = "0.2.0"


def build(model: str = "gpt", *overrides: str, seed: int = 0) -> Any:
    """Build the model that `python -m zoo.train model=... <overrides>` would train, as an
    nn.Module.

    >>> model = zoo.build("gpt", "norm=rms", "pos=rope", "arch.layers=2")
    >>> logits = model(tokens)  # (batch, sequence) -> (batch, sequence, vocabulary)
    """
    from zoo import config, models

    return models.build(config.compose([f"model={model}", *overrides]), seed=seed)


def load(run: str | Path, device: str = "cpu") -> tuple[Any, Any]:
    """Load the trained model and the tokenizer of a run's folder, or of one of its checkpoint
    files.

    Of a folder the best checkpoint is taken, or else the last. Raises ZooError where there is none,
    or one that is damaged.

    >>> model, tokenizer = zoo.load("runs/2026-01-31_12-00-00")
    """
    from zoo.checkpoints import weights

    model, tokenizer, _ = weights.load_model(run, device)
    return model, tokenizer


def runs(folder: str | Path = "runs") -> pandas.DataFrame:
    """Give a table of all runs below a folder, a row for each: its choices, its metrics, its costs,
    and where it is.

    Raises ZooError where there is no run, and where pandas is not installed
    (transformer-zoo[report]).

    >>> zoo.runs("runs").sort_values("val/loss")[["norm", "seed", "val/loss"]]
    """
    from zoo.tracking import run_table

    return run_table.read(Path(folder))
