"""Compare configurations: in which keys they differ, and in which a resumed run may."""

from __future__ import annotations

from typing import Any

from zoo.config import schema

Config = dict[str, Any]
# What a resumed run may change without naming it.
FREE = (
    "resume",
    "changing",
    "logger",
    "trainer.progress",
    "trainer.sample",
    "trainer.keep_memory",
    "trainer.watch_every",
)


def different(config: Config, other: Config, prefix: str = "") -> list[str]:
    """Return the dotted keys in which two configurations differ."""
    keys: list[str] = []
    for key in sorted({*config, *other}, key=str):
        ours, theirs = config.get(key), other.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            keys += different(ours, theirs, f"{prefix}{key}.")
        elif ours != theirs:
            keys.append(f"{prefix}{key}")
    return keys


def changed(config: Config, before: Config) -> list[str]:
    """Return the keys in which a configuration must not differ from that of the run it resumes,
    but does.
    """
    free = (*FREE, *config["changing"])
    keys = different(config, schema.completed(before))
    return [key for key in keys if not any(f"{key}.".startswith(f"{name}.") for name in free)]
