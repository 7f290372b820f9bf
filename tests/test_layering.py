"""The house: imports point down only, also those inside functions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.helpers.modules import ROOT, modules

FLOORS = [  # from the roof down; a name stands for the modules below it, unless they have a floor of their own
    {"ablations", "hydra_plugins"},
    {"zoo.train", "zoo.generate", "zoo.coordinates", "zoo.inspect", "zoo.components.__main__"},
    {"zoo.run", "zoo.screen", "zoo.dashboard"},
    {"zoo.console"},
    {"zoo.callbacks", "zoo.vitals", "zoo.room"},
    {"zoo.lit"},
    {"zoo.divergence"},
    {"zoo.sharding"},
    {"zoo.hf"},
    {"zoo.storage"},
    {"zoo.diagnostics"},
    {"zoo.cost"},
    {
        "zoo.objectives",
        "zoo.loss",
        "zoo.optim",
        "zoo.schedules",
        "zoo.decoding",
        "zoo.data",
        "zoo.evaluation",
    },
    {"zoo.models"},
    {"zoo.stack", "zoo.init"},
    {"zoo.components"},
    {"zoo.attention", "zoo.catalogue"},
    {"zoo.mixer"},
    {"zoo.context", "zoo.functions", "zoo.config"},
    {"zoo.advice", "zoo.provenance"},
    {
        "zoo.settings",
        "zoo.scan",
        "zoo.fitting",
        "zoo.cluster",
        "zoo.locks",
        "zoo.metrics",
        "zoo.words",
    },
    {"zoo.hardware", "zoo.memory", "zoo.quiet", "zoo.progress", "zoo.tables", "zoo.extras"},
    {"zoo.registry"},
    {"zoo.streams", "zoo.contracts"},
]
FACADE = "zoo"  # `zoo.build` reaches down from the package itself, which nothing inside asks for


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of this project that a module imports, wherever in it: at the top or in a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {inner if inner in known else str(node.module) for inner in whole}
    return {module for module in found if module in known} - {name}


def floor(name: str) -> int:
    """How far down a module lives, by the longest name that it is below."""
    places = {place: number for number, names in enumerate(FLOORS) for place in names}
    below = {
        place: number for place, number in places.items() if f"{name}.".startswith(f"{place}.")
    }
    assert below, f"{name} has no floor: give it one here, and in CONTRIBUTING.md"
    return below[max(below, key=len)]


def arrows() -> list[tuple[str, str]]:
    known = modules()
    return [
        (name, other)
        for name, path in known.items()
        if name != FACADE
        for other in imported(name, path, known)
    ]


def test_imports_point_down_only() -> None:
    assert len(arrows()) > 40, "the imports are read"
    upward = [
        arrow for arrow in arrows() if arrow[1] == FACADE or floor(arrow[1]) < floor(arrow[0])
    ]
    assert upward == []


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


def test_the_house_that_people_read_is_this_one() -> None:
    """Every module has its place in CONTRIBUTING.md, and the floors come in the same order there."""
    drawing = (
        (ROOT / "CONTRIBUTING.md")
        .read_text(encoding="utf-8")
        .split("## The house")[1]
        .split("```")[1]
    )
    lines = [line.split("  ")[0].split() for line in drawing.strip().splitlines()]
    words = [(word, row) for row, line in enumerate(lines) for word in line]
    drawn = {word.removeprefix("zoo/").removesuffix(".py").strip("/"): row for word, row in words}
    twice = (
        FACADE,
        "zoo.components",
        "zoo.components.__main__",
    )  # the parts, and the command line that lists them
    short = {
        name: name.removeprefix("zoo.").split(".")[0] for name in modules() if name not in twice
    }
    assert sorted({word for word in short.values() if word not in drawn}) == [], (
        "not in the drawing"
    )
    known = [(name, other) for name, other in arrows() if name in short and other in short]
    upward = [arrow for arrow in known if drawn[short[arrow[1]]] < drawn[short[arrow[0]]]]
    assert upward == []


def test_words_are_read_without_torch() -> None:
    """From the ground up, so that the first to import it is the one that is named."""
    lines = [
        "import sys",
        "heavy = lambda: [name for name in ('torch', 'lightning', 'wandb') if name in sys.modules]",
    ]
    for module in ("zoo.streams", "zoo.registry", "zoo.settings", "zoo.config"):
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
