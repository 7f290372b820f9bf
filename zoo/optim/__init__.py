"""Optimisers and schedules: how the weights are moved.

An optimiser is made with parameter groups, joins those that it treats alike, and says by
`state_size` how many numbers it keeps of a parameter between steps. One that evaluates at other
weights than it trains at has `train` and `eval`, which put these into the model. One that is made
for a schedule names it as `schedule`, and as `progress` what its groups hold beside options.
"""

from zoo.optim import adafactor, adamw, lion, schedule_free
from zoo.optim.groups import Group, parameter_groups, state_size
from zoo.optim.muon import orthogonal

__all__ = [
    "Group",
    "adafactor",
    "adamw",
    "lion",
    "orthogonal",
    "parameter_groups",
    "schedule_free",
    "state_size",
]
