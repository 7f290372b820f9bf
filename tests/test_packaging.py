"""Hold what surrounds the code together: versions, releases, workflows, hooks, and the ends of
lines and files.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import zoo

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RELEASES = re.findall(
    r"^## \[(.+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
)
GITHUB = sorted((ROOT / ".github").rglob("*.yml"))
WRITTEN = {".py", ".md", ".toml", ".yaml", ".yml", ".cff"}
RECORDED = ROOT / "ablations" / "findings"
OURS = (
    "zoo",
    "ablations",
    "hydra_plugins",
    "conf",
    "tests",
    "benchmarks",
    "docs",
    "examples",
    ".ci",
    ".github",
)


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_version_stands_in_one_place_and_is_the_latest_release() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "zoo/__init__.py"
    assert RELEASES[0][0] == zoo.__version__


def test_citation_names_the_latest_release_and_no_person() -> None:
    citation = loaded(ROOT / "CITATION.cff")
    assert (citation["version"], str(citation["date-released"])) == RELEASES[0]
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["authors"] == PROJECT["project"]["authors"]


def test_releases_are_listed_newest_first_down_to_the_first_one() -> None:
    versions = [tuple(map(int, version.split("."))) for version, _ in RELEASES]
    assert versions == sorted(versions, reverse=True)
    assert versions[-1] == (0, 1, 0)


def test_workflow_tests_every_python_that_the_package_names_by_the_ci_script() -> None:
    job = loaded(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]
    tested = [row["python"] for row in job["strategy"]["matrix"]["include"]]
    named = [
        name.rpartition(" ")[2]
        for name in PROJECT["project"]["classifiers"]
        if re.search(r"Python :: 3\.\d+$", name)
    ]
    assert tested == named
    assert PROJECT["project"]["requires-python"] == f">={tested[0]}"
    assert ".ci/run" in [step.get("run") for step in job["steps"]]


@pytest.mark.parametrize("path", GITHUB, ids=lambda path: path.name)
def test_forms_and_workflows_are_yaml_with_a_name(path: Path) -> None:
    assert "name" in loaded(path) or "blank_issues_enabled" in loaded(path)


def test_every_linter_of_the_ci_script_is_a_hook() -> None:
    (local,) = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = {hook["entry"].removesuffix(" --fix") for hook in local["hooks"]}
    last = (ROOT / ".ci" / "run").read_text(encoding="utf-8").split("done\n")[-1].splitlines()
    commands = [line for line in last if not line.startswith(("tests=", "echo "))]  # the total
    linters = {line.removesuffix(" .").removesuffix(" --check") for line in commands}
    assert linters == hooks - {"end-of-file-fixer", "trailing-whitespace-fixer"}


def test_text_ends_with_one_newline_and_no_line_with_spaces() -> None:
    folders = [ROOT.glob("*"), *((ROOT / name).rglob("*") for name in OURS)]
    paths = [path for folder in folders for path in folder if path.suffix in WRITTEN]
    assert len(paths) > 200
    untidy = [
        path
        for path in paths
        if RECORDED not in path.parents[1:]
        and re.search(rb"[ \t]\n|[^\n]\Z|\n\n\Z", path.read_bytes())
    ]
    assert untidy == []
