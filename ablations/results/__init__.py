"""The runs of a study or of a sweep, read from their folders, and what keeps them from being compared."""

from ablations.results.folders import Results, Run, load

__all__ = ["Results", "Run", "load"]
