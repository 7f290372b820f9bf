"""Which package belongs to which extra of the installation, so that each that is missing is told of in the same words."""

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
    """Say what to install for a purpose, where a module is not installed."""
    with contextlib.suppress(ModuleNotFoundError):  # of the package that it lies in
        if importlib.util.find_spec(module) is not None:
            return None
    package, extra = next(
        (name, extra) for name, extra in EXTRAS.items() if f"{module}.".startswith(f"{name}.")
    )
    name = package.split(".")[-1].replace("_", "-")
    return f"{purpose} needs {name}, which is not installed: pip install 'transformer-zoo[{extra}]'"


def need(module: str, purpose: str) -> None:
    """Raise ZooError where a module is not installed, saying what to install; to be called before it is imported."""
    if told := missing(module, purpose):
        raise ZooError(told)


def need_launcher(name: str) -> None:
    """Raise ZooError where a launcher of Hydra's that the extras bring is not installed."""
    module = f"hydra_plugins.hydra_{name.split('_')[0]}_launcher"
    if module in EXTRAS:
        need(module, f"hydra/launcher={name}")
