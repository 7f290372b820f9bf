"""The plan of a study: its arms and runs, the time they take, and what they can detect."""

from ablations.plan.display import show
from ablations.plan.forecast import duration, time_left
from ablations.plan.jobs import JUDGED, Job, Plan, points
from ablations.plan.making import make, same_study_elsewhere

__all__ = [
    "JUDGED",
    "Job",
    "Plan",
    "duration",
    "make",
    "points",
    "same_study_elsewhere",
    "show",
    "time_left",
]
