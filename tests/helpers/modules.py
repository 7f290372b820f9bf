"""The modules of the packages and their files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules() -> dict[str, Path]:
    """Every module by its name."""
    found = {}
    for path in [
        path
        for top in ("zoo", "ablations", "hydra_plugins")
        for path in ROOT.glob(f"{top}/**/*.py")
    ]:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found
