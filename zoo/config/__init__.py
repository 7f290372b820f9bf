"""From words on the command line to checked configurations, before anything heavy is imported."""

from zoo.config.compose import (
    CONF,
    FREE,
    Config,
    changed,
    choices,
    compose,
    composing,
    defaults,
    different,
    discover,
    finished,
    jobs,
    menu,
    spelled,
    word_for,
)

__all__ = [
    "CONF",
    "FREE",
    "Config",
    "changed",
    "choices",
    "compose",
    "composing",
    "defaults",
    "different",
    "discover",
    "finished",
    "jobs",
    "menu",
    "spelled",
    "word_for",
]
