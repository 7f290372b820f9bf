"""`python -m zoo.components`: print the menu, every component with its options, their bounds, and
its users.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from zoo import config, registry
from zoo.config import model_usage
from zoo.errors import cli_errors
from zoo.options import in_signs, limits
from zoo.registry import Entry


def menu() -> dict[str, dict[str, dict[str, Any]]]:
    """For each group and name: description, options with their defaults, bounds, module, models
    that use it.
    """
    config.discover()
    users = model_usage.users()
    return {
        group: {
            name: _about(entry, users.get((group, name), []))
            for name, entry in registry.entries(group).items()
        }
        for group in registry.groups()
    }


def _about(entry: Entry, users: list[str]) -> dict[str, Any]:
    options = {key: value for key, value in entry.defaults().items() if key != "name"}
    return {
        "description": entry.about,
        "options": options,
        "bounds": limits(entry.options),
        "module": entry.module,
        "models": users,
    }


def readme() -> str:
    """The menu as the README has it."""
    whole = {group: list(registry.entries(group)) for group in menu()} | {
        "model": config.menu()["model"]
    }
    rows = [
        f"| `{config.word_for(group)}` | {', '.join(f'`{name}`' for name in sorted(names))} |"
        for group, names in sorted(whole.items())
    ]
    return "\n".join(["| group | choices |", "|---|---|", *rows])


@cli_errors()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.components", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--readme", action="store_true", help="the README's table")
    asked, whole = parser.parse_intermixed_args(), menu()
    chosen = {group: whole[group] for group in asked.groups or whole if registry.entries(group)}
    if asked.readme:
        print(readme())
        return
    if asked.json:
        print(json.dumps(chosen, indent=2, ensure_ascii=False))
        return
    from zoo.utils import tables

    tables.show(table(chosen))


def table(chosen: dict[str, dict[str, dict[str, Any]]]) -> Any:
    """The menu for people."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for group, names in chosen.items():
        for name, about in names.items():
            bounds = about["bounds"]
            options = " ".join(
                f"{key}={'null' if value is None else value}{in_signs(bounds.get(key, {}))}"
                for key, value in about["options"].items()
            )
            users = " ".join(about["models"]) and f"in {' '.join(about['models'])}"
            lines = [
                Text(about["description"]),
                *(Text(line, "dim") for line in (options, users) if line),
            ]
            shown.add_row(Text(f"{config.word_for(group)}={name}", "cyan"), Text("\n").join(lines))
        shown.add_section()
    return shown


if __name__ == "__main__":
    main()
