"""A zoo of interchangeable transformer components, and a harness that says what each of them is worth."""

from typing import Any

__version__ = "0.2.0"


def build(model: str = "gpt", *overrides: str, seed: int = 0) -> Any:
    """The model that `python -m zoo.train model=... <overrides>` would train, as an nn.Module, in the same words.

    >>> model = zoo.build("gpt", "norm=rms", "pos=rope", "arch.layers=2")
    >>> logits = model(tokens)  # (batch, sequence) -> (batch, sequence, vocabulary)
    """
    from zoo import config, models

    return models.build(config.compose([f"model={model}", *overrides]), seed=seed)
