"""Tells which rank this process is, before torch.distributed is set up."""

from __future__ import annotations

import os


def launched_externally() -> bool:
    """Whether something outside, as srun or torchrun, has started several processes that train together."""
    return max(int(os.environ.get("SLURM_NTASKS", 1)), int(os.environ.get("WORLD_SIZE", 1))) > 1


def is_rank_zero() -> bool:
    """Whether this process, of those that train together, is the one that writes and speaks."""
    return not any(int(os.environ.get(name, 0)) for name in ("LOCAL_RANK", "RANK", "SLURM_PROCID"))
