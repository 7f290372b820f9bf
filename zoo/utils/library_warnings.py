"""Keeps to itself what libraries remark on that is meant to be as it is, and that a user can do nothing about."""

from __future__ import annotations

import logging
import warnings

REMARKS = (
    ".*does not have many workers.*",
    ".*sync_dist=True.*",
    ".*find_unused_parameters.*",
    ".*Checkpoint directory .* exists.*",
    ".*treespec.*",
    ".*isinstance.*",
    ".*AMP with fp16 is not supported on CPU.*",
)  # for this zoo.training.runner refuses, in a sentence


def lightning() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for remark in REMARKS:
        warnings.filterwarnings("ignore", remark)
