"""What is learned: an objective prepares a batch, and turns a model and that batch into a loss."""

from zoo.objectives.base import IGNORE, MARK, MEASURED, START, MaskedLM, Objective, check, streams

__all__ = ["IGNORE", "MARK", "MEASURED", "START", "MaskedLM", "Objective", "check", "streams"]
