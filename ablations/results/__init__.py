"""Read the runs of a study or a sweep from their folders, and check that they are comparable."""

from ablations.results.loading import load
from ablations.results.runs import Results, Run

__all__ = ["Results", "Run", "load"]
