"""Keeps summary.json, which says of a run what it is, how far it came and how it ended."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zoo import config as configuration
from zoo.config import Config
from zoo.errors import ZooError
from zoo.tracking import provenance, status
from zoo.utils import distributed, files


class RunRecord:
    """The content of summary.json; written at each update, by rank 0."""

    def __init__(self, config: Config, folder: Path, overrides: Sequence[str]) -> None:
        self.config, self.folder = config, folder
        self.before = files.read_json(folder / "summary.json")
        self.summary: dict[str, Any] = {
            "status": status.RUNNING,
            "error": None,
            "id": self.before.get("id", uuid.uuid4().hex[:12]),
            "started": self.before.get("started", datetime.now(UTC).isoformat()),
            "overrides": list(overrides),
            "choices": configuration.choices(config),
            "seed": config["seed"],
        }

    def update(self, **fields: Any) -> None:
        """Add fields and write the file; a rank that failed writes, too, unless another has."""
        self.summary.update(fields)
        failed = fields.get("status") == status.FAILED
        if failed and status.of(self.folder) == status.FAILED:
            return
        if failed or distributed.is_rank_zero():
            files.write_json(self.folder / "summary.json", self.summary)

    def add_provenance(self) -> None:
        """Add the commit, packages, machine and source files that this run is made with."""
        used = provenance.sources(self.config)
        resumes = any((self.folder / "checkpoints").glob("*.ckpt"))
        self.update(
            git_sha=provenance.git_sha(),
            versions=provenance.versions(),
            host=provenance.hardware(),
            sources=used,
            earlier_sources=provenance.earlier(self.before, used) if resumes else [],
        )

    def write_config(self) -> None:
        """Write config.yaml, resolved."""
        from omegaconf import OmegaConf

        content = OmegaConf.to_yaml(self.config).encode()
        files.write_atomically(self.folder / "config.yaml", content)

    def fail(self, error: BaseException) -> None:
        """Record an error that ends the run, where the disk is not full."""
        message = str(error) if isinstance(error, ZooError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            self.update(status=status.FAILED, error=message)
