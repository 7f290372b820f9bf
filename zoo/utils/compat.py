"""What this project uses of other packages although it is private there: each a thin function here.

No public way exists for any of it. tests/test_compat.py has a test of each, which fails at an
upgrade that takes it away, and says what to do. Seen with hydra-core 1.3.8, torch 2.13.0,
wandb 0.31.0.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

if TYPE_CHECKING:
    from torch import Tensor

Task = Callable[[DictConfig], Any]


def hydra_parser() -> ArgumentParser:
    """Return Hydra's parser of its own flags (hydra-core 1.3.8), so that all of them are known."""
    from hydra._internal.utils import get_args_parser

    return get_args_parser()


def hydra_main(arguments: Namespace, task: Task, conf: str) -> None:
    """Do what `hydra.main` does (hydra-core 1.3.8), for a command line that is parsed already.

    `hydra.main` itself reads sys.argv, and takes no flags between overrides.
    """
    from hydra import version
    from hydra._internal.utils import _run_hydra

    version.setbase("1.3")
    _run_hydra(arguments, hydra_parser(), task, conf, "config")


def hydra_callbacks(config: DictConfig) -> Any:
    """Return Hydra's caller of the callbacks in a configuration (hydra-core 1.3.8).

    `hydra.core.utils.run_job` needs it, and no public name makes one.
    """
    from hydra._internal.callbacks import Callbacks

    return Callbacks(config)


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor has a shape and a device but no content (torch 2.13.0)."""
    from torch._subclasses import FakeTensor

    return tensor.is_meta or isinstance(tensor, FakeTensor)


def fake_tensor_mode() -> Any:
    """Return a context in which operations give tensors without content (torch 2.13.0)."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def storage_key(tensor: Tensor) -> int:
    """Return what tells storages apart (torch 2.13.0); `data_ptr()` is 0 for one without
    content.
    """
    return tensor.untyped_storage()._cdata


def times_written(tensor: Tensor) -> int:
    """Return how often a tensor has been changed in place (torch 2.13.0)."""
    return tensor._version


def foreach(operation: str) -> Callable[..., Any]:
    """Return an operation on lists of tensors in few kernels (torch 2.13.0): `mul_`, `lerp`."""
    import torch

    return getattr(torch, f"_foreach_{operation}")


def compile_reads_of_numbers() -> None:
    """Let a compiled graph go on where a number is read from a tensor (torch 2.13.0)."""
    import torch._dynamo

    torch._dynamo.config.capture_scalar_outputs = True


def came_from_a_data_worker(frames: Sequence[str]) -> bool:
    """Whether torch was waiting for a data worker, by the functions on a traceback (torch
    2.13.0).
    """
    return "_get_data" in frames


def forget_wandb_run() -> None:
    """Make `import wandb` as it was before a run that was lost (wandb 0.31.0)."""
    from wandb.sdk.lib.module import unset_globals

    unset_globals()
