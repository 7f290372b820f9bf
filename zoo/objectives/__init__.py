"""Training objectives: each prepares a batch and turns a model and that batch into a loss."""

from zoo.objectives.base import EVAL_METRICS, IGNORE, MASK_TOKEN, START_TOKEN, Objective
from zoo.objectives.compatibility import check

__all__ = ["EVAL_METRICS", "IGNORE", "MASK_TOKEN", "START_TOKEN", "Objective", "check"]
