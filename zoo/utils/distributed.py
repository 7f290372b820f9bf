"""Tells which rank this process is, before torch.distributed is set up."""

from __future__ import annotations

import os


def launched_externally() -> bool:
    """Whether a launcher such as srun or torchrun has started several ranks."""
    return max(int(os.environ.get("SLURM_NTASKS", 1)), int(os.environ.get("WORLD_SIZE", 1))) > 1


def is_rank_zero() -> bool:
    """Whether this process is rank 0, which writes files and prints."""
    return not any(int(os.environ.get(name, 0)) for name in ("LOCAL_RANK", "RANK", "SLURM_PROCID"))
