"""Records what a run is made with: commit, packages, machine, and the source of its components."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zoo import registry

PACKAGES = (
    "torch",
    "lightning",
    "torchmetrics",
    "hydra-core",
    "wandb",
    "pyarrow",
    "tokenizers",
    "numpy",
    "transformer-zoo",
)
COMMON = "zoo.training.runner"  # with all that it imports: what every run uses, whatever it chooses


def git_sha() -> str | None:
    """The commit of the zoo's own code, where it runs from a checkout."""
    folder = Path(__file__).parents[1]
    if _is_ignored(folder):
        return None
    return (
        _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").strip()
        or None
    )


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def hardware() -> dict[str, Any]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


def sources(config: Mapping[str, Any]) -> dict[str, Any]:
    """The source of a run.

    `components` has the module of each chosen component, `files` the SHA-256 of these modules and
    of all that they import from their own package, `packages` the version, commit and uncommitted
    modules of each. A file is read once per process, when first used, as later edits do not run.
    """
    components = {
        f"{group}={name}": registry.entry(group, name).module for group, name in chosen(config)
    }
    modules = sorted(
        {inner for module in {COMMON, *components.values()} for inner in closure(module)}
    )
    files = {module: digest for module in modules if (digest := _digest(module))}
    roots = {
        module.split(".")[0]: module
        for module in modules
        if module == COMMON or module in components.values()
    }
    packages = {
        name: _package(name, module, tuple(files)) for name, module in sorted(roots.items())
    }
    return {"components": components, "files": files, "packages": packages}


def earlier(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[dict[str, str]]:
    """The file hashes with which a resumed run was started, where they have changed."""
    hashes = list(before.get("earlier_sources") or [])
    last = (before.get("sources") or {}).get("files")
    return [*hashes, last] if last and last != now["files"] else hashes


def chosen(config: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Every component in a configuration, nested ones included, as (group, name)."""
    return set(_chosen(config))


def _chosen(node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, list):
        for inner in node:
            yield from _chosen(inner)
    for key, value in node.items() if isinstance(node, Mapping) else ():
        group = registry.group_within(str(key))
        for choice in value if isinstance(value, list) else [value]:
            name = choice.get("name") if isinstance(choice, Mapping) else choice
            known = registry.entries(group) if group in registry.groups() else {}
            if isinstance(name, str) and name in known:
                yield group, name
        yield from _chosen(value)


@functools.cache
def closure(module: str) -> frozenset[str]:
    """A module and all that it imports, directly or not, from its package or a script's folder."""
    found, left = set[str](), [module]
    while left:
        name = left.pop()
        if name and name not in found and _beside(name, module) and _file(name):
            found.add(name)
            left += [*_imports(name), name.rpartition(".")[0]]
    return frozenset(found)


def _beside(name: str, module: str) -> bool:
    if "." in module:
        return name.split(".")[0] == module.split(".")[0]
    here, top = _file(module), name.split(".")[0]
    return here is not None and (
        name == module or any((here.parent / place).exists() for place in (f"{top}.py", top))
    )


@functools.cache
def _file(module: str) -> Path | None:
    """A module's source, found without importing it."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded:
        return Path(loaded).resolve() if loaded.endswith(".py") else None
    parent, _, name = module.rpartition(".")
    package = _file(parent) if parent else None
    if parent:
        places = (
            []
            if package is None or package.name != "__init__.py"
            else [package.parent / f"{name}.py", package.parent / name / "__init__.py"]
        )
        return next((place for place in places if place.is_file()), None)
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            return Path(spec.origin).resolve()
    return None


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    """The modules that a module's source imports, wherever in it."""
    place = _file(module)
    try:
        tree = ast.parse(place.read_text(encoding="utf-8")) if place else ast.Module([], [])
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ()
    package = module if place and place.name == "__init__.py" else module.rpartition(".")[0]
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = (
                package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            )
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= dict.fromkeys([base, *(f"{base}.{alias.name}" for alias in node.names)])
    return tuple(found)


@functools.cache
def _digest(module: str) -> str | None:
    place = _file(module)
    with contextlib.suppress(OSError):
        return hashlib.sha256(place.read_bytes()).hexdigest() if place else None
    return None


@functools.cache
def _package(name: str, module: str, modules: tuple[str, ...]) -> dict[str, Any]:
    """The version of a package, its checkout's commit, and which modules differ from that."""
    place = _file(module)
    folder = place.parent if place else Path()
    if _is_ignored(folder):
        return {"version": _version(name), "commit": None, "changed": []}
    root = Path(_git(folder, "rev-parse", "--show-toplevel").strip() or ".")
    status = _git(
        folder,
        "status",
        "--porcelain",
        "-z",
        "--untracked-files=all",
        "--ignored=matching",
        "--",
        ".",
    )
    changed = {(root / entry[3:]).resolve() for entry in status.split("\0")}
    commit = _git(folder, "rev-parse", "HEAD").strip() or None
    return {
        "version": None if commit else _version(name),
        "commit": commit,
        "changed": [inner for inner in modules if _file(inner) in changed],
    }


def _version(package: str) -> str | None:
    for distribution in importlib.metadata.packages_distributions().get(package, []):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return None


def _is_ignored(folder: Path) -> bool:
    """Whether git ignores a folder, as an environment inside another project's repository."""
    return bool(_git(folder, "check-ignore", "."))


def _git(folder: Path, *arguments: str) -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, check=False
        )
        return (
            os.fsdecode(done.stdout) if done.returncode == 0 else ""
        )  # names of files, which need not be UTF-8
    return ""
