"""The report of a study or a sweep: its sections, its pages, its tables."""

from ablations.report.csv_files import COMPARISON
from ablations.report.writing import read, show, write

__all__ = ["COMPARISON", "read", "show", "write"]
