"""From the overrides of a command to checked configurations, before anything heavy is imported."""

from zoo.config.compose import compose, composing, composing_job, finished, spelled
from zoo.config.differences import FREE, Config, changed, different
from zoo.config.groups import CONF, choices, defaults, discover, menu, word_for
from zoo.config.sweeps import given_overrides, jobs

__all__ = [
    "CONF",
    "FREE",
    "Config",
    "changed",
    "choices",
    "compose",
    "composing",
    "composing_job",
    "defaults",
    "different",
    "discover",
    "finished",
    "given_overrides",
    "jobs",
    "menu",
    "spelled",
    "word_for",
]
