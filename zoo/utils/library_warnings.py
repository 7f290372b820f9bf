"""Silences warnings of libraries about what is intended, or what a user can do nothing about."""

from __future__ import annotations

import logging
import warnings

IGNORED = (
    ".*does not have many workers.*",
    ".*sync_dist=True.*",
    ".*find_unused_parameters.*",
    ".*Checkpoint directory .* exists.*",
    ".*treespec.*",
    ".*isinstance.*",
    ".*AMP with fp16 is not supported on CPU.*",  # zoo.training.runner refuses it in a sentence
)


def lightning() -> None:
    """Silence Lightning's notices, and the warnings listed above."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for message in IGNORED:
        warnings.filterwarnings("ignore", message)
