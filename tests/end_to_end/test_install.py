"""The wheel alone, in an environment that does not know this checkout, from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import zoo

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel; the dependencies are those of this one, which
    need no download.
    """
    place = tmp_path_factory.mktemp("installed")
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(place / "dist"),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (place / "dist").glob("*.whl")
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    (site,) = (place / "venv").glob("lib/python*/site-packages")
    # paths named in a .pth file are searched, but their own .pth files (the editable install of
    # this checkout) are not read
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"], encoding="utf-8")
    return python.parent


def test_the_wheel_has_its_version_and_its_types(environment: Path) -> None:
    (wheel,) = (environment.parents[1] / "dist").glob("*.whl")
    assert wheel.name.split("-")[1] == zoo.__version__
    names = zipfile.ZipFile(wheel).namelist()
    assert {"zoo/py.typed", "ablations/py.typed"} <= set(names)


def run(*line: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line, capture_output=True, text=True, timeout=200, env=os.environ | environment, check=False
    )


def test_the_wheel_trains_from_another_folder(environment: Path, words: list[str]) -> None:
    where = run(
        environment / "python", "-c", "import zoo, zoo.config; print(zoo.__file__, zoo.config.CONF)"
    )
    assert str(ROOT) not in where.stdout, where.stderr
    done = run(environment / "zoo-train", *words, "norm=rms", "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert Path("run/checkpoints/last.ckpt").exists()


@pytest.mark.parametrize("script", ["zoo-train", "zoo-ablate"])
def test_the_console_scripts_complete_words(environment: Path, script: str) -> None:
    installed = run(environment / script, "-sc", "install=bash")
    assert f"complete -o nospace -o default -F hydra_bash_completion {script}" in installed.stdout
    asked = run(
        environment / script,
        "-sc",
        "query=bash",
        COMP_LINE=f"{script} norm=r",
        COMP_POINT=str(len(script) + 7),
    )
    assert "norm=rms" in asked.stdout.split()


def test_zoo_ablate_compares_the_arms(environment: Path, words: list[str]) -> None:
    learning = ("trainer.max_steps=40", "optim.lr=0.01")  # more than how often each letter comes
    done = run(environment / "zoo-ablate", *words, *learning, "norm=layer,rms", "seed=0,1")
    assert done.returncode == 0, done.stderr
    assert "norm=rms" in done.stdout
    assert "too few for a verdict" in " ".join(done.stdout.split())
