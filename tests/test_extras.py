"""Extras: a missing package is named in one form, with the extra that brings it."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import zoo
from zoo import config, hf
from zoo.errors import ZooError
from zoo.utils import extras, plots

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ALIASES = {"hydra-core": "hydra"}  # the module of a package, where it has another name


def packages(names: list[str]) -> set[str]:
    """The modules that requirements bring."""
    found = {re.split(r"[<>=\[ ]", name)[0] for name in names}
    return {ALIASES.get(name, name).replace("-", "_") for name in found}


def imported() -> Iterator[tuple[Path, str]]:
    for path in [
        path
        for top in ("zoo", "ablations", "hydra_plugins")
        for path in ROOT.glob(f"{top}/**/*.py")
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name.split(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield path, node.module.split(".")[0]


def test_every_extra_declares_its_packages() -> None:
    declared = {extra: packages(names) for extra, names in PROJECT["optional-dependencies"].items()}
    for module, extra in extras.EXTRAS.items():
        assert module.split(".")[-1] in declared[extra]


def test_every_import_is_a_dependency_or_belongs_to_an_extra() -> None:
    base = (
        packages(PROJECT["dependencies"])
        | set(sys.stdlib_module_names)
        | {"zoo", "ablations", "hydra_plugins"}
    )
    base |= {
        "omegaconf",
        "yaml",
        "pyarrow",
        "huggingface_hub",
        "fsspec",
    }  # which some of these bring
    assert {
        (path.name, module)
        for path, module in imported()
        if module not in base | extras.EXTRAS.keys()
    } == set()


def test_install_advice_is_written_in_one_place() -> None:
    saying = [
        path
        for path in {path for path, _ in imported()}
        if "pip install" in path.read_text(encoding="utf-8")
    ]
    assert [path.name for path in saying] == ["extras.py"]


NEEDS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "from_hf": ("transformers", "hf", lambda folder: hf.from_hf("gpt2")),
    "to_hf": ("transformers", "hf", lambda folder: hf.to_hf(zoo.build("gpt2", "size=tiny"))),
    "export": (
        "transformers",
        "hf",
        lambda folder: hf.export(folder / "last.ckpt", folder / "out"),
    ),
    "a picture": (
        "matplotlib",
        "report",
        lambda folder: plots.canvas(folder / "x.svg", 2, 2),
    ),
    "joblib": (
        "hydra_plugins.hydra_joblib_launcher",
        "launchers",
        lambda folder: config.compose(["hydra/launcher=joblib"]),
    ),
    "submitit": (
        "hydra_plugins.hydra_submitit_launcher",
        "launchers",
        lambda folder: config.compose(["hydra/launcher=submitit_slurm"]),
    ),
    "ray": (
        "hydra_plugins.hydra_ray_launcher",
        "ray",
        lambda folder: config.compose(["hydra/launcher=ray"]),
    ),
}


@pytest.mark.parametrize("what", NEEDS)
def test_missing_package_is_named_with_its_extra(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, extra, use = NEEDS[what]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ZooError,
        match=rf"needs .*, which is not installed: pip install 'transformer-zoo\[{extra}\]'$",
    ):
        use(tmp_path)


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("transformers", ["ckpt=x", "out=y"], "hf"),
        ("safetensors", ["ckpt=x", "out=y.safetensors"], "hf"),
    ],
)
def test_export_command_names_the_missing_package(
    module: str, words: list[str], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zoo.hf.__main__ import main

    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("sys.argv", ["zoo.hf", *words])
    with pytest.raises(SystemExit, match=rf"error: .*needs {module}.*transformer-zoo\[{extra}\]'"):
        main()


@pytest.mark.parametrize("module", ["scipy", "matplotlib"])
def test_harness_names_the_missing_package(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = importlib.import_module("ablations")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit, match=rf"needs {module}.*transformer-zoo\[report\]'"):
        importlib.reload(harness)
