"""Fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hydra.core.config_store import ConfigStore

from zoo import config, registry

config.discover()
os.environ.pop("COLUMNS", None)  # xdist tells its workers how wide its own terminal is
torch.set_num_threads(1)  # for matrices this small a second thread only waits


@pytest.fixture
def own_registry() -> Iterator[None]:
    """What a test registers is gone after it."""
    entries, repo = registry._entries, ConfigStore.instance().repo
    for group, name in [(group, name) for group, names in entries.items() for name in names]:
        registry.entry(
            group, name
        ).load()  # else a test may be the first to import it, and its declaration be lost
    kept = {group: dict(names) for group, names in entries.items()}
    yield
    added = [
        (group, name)
        for group, names in entries.items()
        for name in names
        if name not in kept.get(group, {})
    ]
    for (
        group,
        name,
    ) in added:  # Hydra's plugins add to the same store the first time that it composes
        del repo[group][f"{name}.yaml"]
    entries.clear()
    entries.update(kept)
