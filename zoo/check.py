"""The command line `python -m zoo.check norm=mine`: does a component do what its group asks for?"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from rich.console import Console

from zoo import config, registry
from zoo.config import overrides
from zoo.errors import ZooError, cli_errors

DESCRIPTION = """\
Runs the conformance checks of a group on one member: shapes, gradients, causality, caches, padding,
documents, bfloat16, declared cost, saving and loading; for optimisers, schedules, objectives,
tokenizers and data what is asked of those.
"""


@cli_errors()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.check", description=DESCRIPTION)
    parser.add_argument(
        "overrides",
        nargs="+",
        metavar="GROUP=NAME",
        help="a component and its options, as for zoo.train: norm=mine norm.p=3",
    )
    parser.add_argument(
        "--module",
        help="a module or a .py file that declares it, where no installed package names it",
    )
    asked = parser.parse_intermixed_args()
    if asked.module:
        import_module(asked.module)
    config.discover()
    group, choice = chosen(asked.overrides)
    if not report(group, choice):
        sys.exit(1)


def chosen(words: list[str]) -> tuple[str, dict[str, object]]:
    """The group and the choice that overrides such as norm=mine norm.p=3 name, checked by the
    registry.
    """
    (first, *others) = [overrides.parse(word) for word in words]
    group, name = first.key_or_group, str(first.value())
    registry.entry(group, name)
    choice: dict[str, object] = {"name": name}
    for other in others:
        key = other.key_or_group
        if not key.startswith(f"{group}."):
            raise ZooError(
                f"{other.input_line}: only options of {group} can follow, as {group}.OPTION="
            )
        choice[key.removeprefix(f"{group}.")] = other.value()
    registry.resolve(group, choice)
    return group, choice


def import_module(name: str) -> None:
    """Import a module by its name, or a .py file by its path. Raises ZooError where there is
    none.
    """
    path = Path(name)
    if path.suffix == ".py":
        if not path.is_file():
            raise ZooError(f"--module {name}: there is no such file")
        sys.path.insert(0, str(path.resolve().parent))
        name = path.stem
    else:
        sys.path.insert(0, "")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ZooError(f"--module {name}: {error}") from error


def report(group: str, choice: dict[str, object]) -> bool:
    """Print a line for each check as it ends; give whether all of them hold."""
    from zoo import conformance

    console, failed, count = Console(highlight=False), 0, 0
    for result in conformance.conform(group, choice):
        count += 1
        failed += result.found is not None
        mark = "[green]ok    [/]" if result.found is None else "[red]FAILED[/]"
        console.print(f"{mark} {result.asks}", soft_wrap=True)
        if result.found is not None:
            console.print(f"       {result.found}", soft_wrap=True, markup=False)
    console.print(f"{group}={choice['name']}: {count - failed} of {count} checks hold")
    return not failed


if __name__ == "__main__":
    main()
