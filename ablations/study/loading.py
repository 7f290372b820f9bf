"""Find the file of a study by its name, and load it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ablations.study.parsing import parse
from ablations.study.schema import Study
from ablations.study.yaml_values import Loader
from zoo.config import CONF
from zoo.errors import ZooError, did_you_mean


def load(
    name: str, changes: Mapping[str, Any] | None = None, folders: Iterable[Path] = ()
) -> Study:
    """Load the study of this name (or this file), with the changes made on the command line.

    `folders` are searched for `study/NAME.yaml` besides `conf/`.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = _find(name, [CONF, *folders])
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except OSError as error:
        raise ZooError(f"no study {name!r}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ZooError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ZooError(f"{path} must have keys, as in `design: factorial`")
    content["name"] = content.get("name") or path.stem
    return parse(content | dict(changes or {}))


def _find(name: str, folders: Iterable[Path]) -> Path:
    known = {
        path.stem: path for folder in folders for path in sorted((folder / "study").glob("*.yaml"))
    }
    if name not in known:
        raise ZooError(f"no study {name!r}{did_you_mean(name, known)}")
    return known[name]
