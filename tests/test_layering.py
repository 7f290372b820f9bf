"""The house: imports point down only, also those inside functions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.helpers.modules import ROOT, modules

HOUSE = ROOT / "CONTRIBUTING.md"  # its drawing is the rule: a line is a floor, from the roof down
FACADE = "zoo"  # `zoo.build` reaches down from the package itself, which nothing inside asks for


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of this project that a module imports, wherever in it: at the top or in a
    function.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {inner if inner in known else str(node.module) for inner in whole}
    return {module for module in found if module in known} - {name}


def floors() -> dict[str, int]:
    """The floor of each module or folder that CONTRIBUTING.md draws: a name stands for all below
    it that have no own.
    """
    drawing = HOUSE.read_text(encoding="utf-8").split("## The house")[1].split("```")[1]
    drawn: dict[str, int] = {}
    for number, line in enumerate(drawing.strip().splitlines()):
        for word in line.split("  ")[0].split():
            name = word.strip("/").removesuffix(".py").replace("/", ".")
            assert name not in drawn, f"{name} is drawn twice"
            drawn[name] = number
    return drawn


def floor(name: str, drawn: dict[str, int]) -> int:
    """How far down a module lives, by the longest name that it is below."""
    below = [place for place in drawn if f"{name}.".startswith(f"{place}.")]
    assert below, f"{name} has no floor: give it one in CONTRIBUTING.md"
    return drawn[max(below, key=len)]


def arrows() -> list[tuple[str, str]]:
    known = modules()
    return [
        (name, other)
        for name, path in known.items()
        if name != FACADE
        for other in imported(name, path, known)
    ]


def test_imports_point_down_only() -> None:
    drawn, found = floors(), arrows()
    assert len(found) > 40, "the imports are read"
    upward = [
        (name, other)
        for name, other in found
        if other == FACADE or floor(other, drawn) < floor(name, drawn)
    ]
    assert upward == []


def test_everything_that_is_drawn_exists() -> None:
    known = modules()
    assert [
        name
        for name in floors()
        if name not in known and not (ROOT / name.replace(".", "/")).is_dir()
    ] == []


def test_no_module_needs_itself() -> None:
    below: dict[str, set[str]] = {}
    for name, other in arrows():
        below.setdefault(name, set()).add(other)
    while leaves := {name for name, others in below.items() if not others & below.keys()}:
        for name in leaves:
            del below[name]
    assert not below, "modules that import each other in a circle"


def test_no_component_imports_another() -> None:
    """A file of components can be taken away without another noticing."""
    inside = [(name, other) for name, other in arrows() if name.startswith("zoo.components.")]
    assert [arrow for arrow in inside if arrow[1].startswith("zoo.components.")] == []


def test_words_are_read_without_torch() -> None:
    """From the ground up, so that the first to import it is the one that is named."""
    lines = [
        "import sys",
        "heavy = lambda: [name for name in ('torch', 'lightning', 'wandb') if name in sys.modules]",
    ]
    for module in ("zoo.utils.seeding", "zoo.registry", "zoo.config.schema", "zoo.config"):
        lines += [f"import {module}", f"print({module!r}, heavy())"]
    lines += ["zoo.config.compose(['model=gpt2', 'norm=rms'])", "print('composed', heavy())"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if not line.endswith("[]")] == []
    assert "composed" in done.stdout


def test_tests_import_helpers_and_no_other_test() -> None:
    others = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "tests").glob("**/*.py")
        for name in re.findall(
            r"^\s*(?:from|import) (\.\S*|tests\S*)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        if not name.startswith("tests.helpers")
    ]
    assert others == []
