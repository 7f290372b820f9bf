"""Says which extra of the installation brings a missing package, in one form for all of them."""

from __future__ import annotations

import contextlib
import importlib.util

from zoo.errors import ZooError

EXTRAS = {
    "transformers": "hf",
    "safetensors": "hf",
    "scipy": "report",
    "matplotlib": "report",
    "wandb_workspaces": "report",
    "pandas": "report",
    "hydra_plugins.hydra_joblib_launcher": "launchers",
    "hydra_plugins.hydra_submitit_launcher": "launchers",
    "hydra_plugins.hydra_ray_launcher": "ray",
}


def missing(module: str, purpose: str) -> str | None:
    """The sentence that says what to install for a purpose; None where the module is there."""
    with contextlib.suppress(ModuleNotFoundError):  # raised for its parent package
        if importlib.util.find_spec(module) is not None:
            return None
    package, extra = next(
        (name, extra) for name, extra in EXTRAS.items() if f"{module}.".startswith(f"{name}.")
    )
    name = package.split(".")[-1].replace("_", "-")
    return f"{purpose} needs {name}, which is not installed: pip install 'transformer-zoo[{extra}]'"


def need(module: str, purpose: str) -> None:
    """Raise ZooError, saying what to install, if a module is missing; call before importing it."""
    if message := missing(module, purpose):
        raise ZooError(message)


def need_launcher(name: str) -> None:
    """Raise ZooError where a Hydra launcher that an extra brings is not installed."""
    module = f"hydra_plugins.hydra_{name.split('_')[0]}_launcher"
    if module in EXTRAS:
        need(module, f"hydra/launcher={name}")
