"""Keep the specification of a study in study.json, which only grows.

Each amendment is recorded with its time, the old and the new value, and how many runs had ended.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ablations import study as studies
from ablations.plan import Plan
from ablations.study import Study
from zoo.errors import ZooError
from zoo.tracking import status
from zoo.utils import files, locks

MOST = 6  # values listed in a sentence


def record(plan: Plan) -> list[str]:
    """Write study.json, which keeps its history. Returns what the user should know of that."""
    with writing(plan.folder) as before:
        foreseen(plan, before)
        changed = changes(before, plan.study)
        content = before | plan.as_json()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        ended = _ended(plan.folder, before or plan.as_json())
        if not before:
            content["written"] = {"time": now} | ended
        elif changed:
            content["amendments"] = [
                *before.get("amendments", []),
                {"time": now, **ended, "changed": changed},
            ]
        look = {"hash": plan.study.key, "seeds": plan.study.seeds, "time": now} | ended
        looks = before.get("looks", [])
        if look["hash"] not in [known["hash"] for known in looks]:
            seen = looks if ended["ended"] else looks[:-1]  # without a result there was no look
            looks = [*seen, look]
        content["looks"] = looks
        files.write_json(plan.folder / "study.json", content)
    if len(looks) < 2:
        return []
    return [f"look {len(looks)} at this folder: the report halves α for each"]


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[dict[str, Any]]:
    """Lock study.json; gives its content, which is empty where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    with locks.locked(folder / ".study", wait=True):
        yield read(folder)


def read(folder: Path) -> dict[str, Any]:
    content = files.read_json(folder / "study.json")
    if not content and (folder / "study.json").exists():
        raise ZooError(
            f"{folder / 'study.json'} is damaged, and holds what was planned before the first run:"
            " restore it, or move it away; then the report says that it was written after the runs"
        )
    return content


def foreseen(plan: Plan, before: Mapping[str, Any]) -> list[str]:
    """What a plan changes in the specification in its folder. Raises ZooError for another study."""
    if not before:
        return []
    name = (before.get("study") or {}).get("name")
    known = {_folder(arm) for arm in before.get("arms") or []}
    if name != plan.study.name:
        raise ZooError(
            f"{plan.folder} holds study {name!r}, and {plan.study.name!r} is another: choose"
            " another hydra.sweep.dir"
        )
    if not known & {arm.folder for arm in plan.arms[1:]}:
        raise ZooError(
            f"{plan.folder} holds another study of the name {plan.study.name!r} (arms"
            f" {listed(sorted(known))}): choose another hydra.sweep.dir, or another name"
        )
    changed = changes(before, plan.study)
    ended = _ended(plan.folder, before)
    if not changed:
        return []
    return [
        f"the specification is amended after {ended['ended']} of {ended['runs']} runs, and the"
        f" report says so: {_changes(changed)}"
    ]


def changes(before: Mapping[str, Any], study: Study) -> dict[str, list[Any]]:
    """Each part of a specification that has changed: its old and its new value."""
    if not before:
        return {}
    was = {key: before["study"].get(key, value) for key, value in asdict(Study(study.name)).items()}
    now = json.loads(json.dumps(asdict(study)))
    return dict(_different(studies.plain(was), studies.plain(now)))


def _different(
    was: Mapping[str, Any], now: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, list[Any]]]:
    for key in dict.fromkeys([*was, *now]):
        one, two = was.get(key), now.get(key)
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            yield from _different(one, two, f"{above}{key}.")
        elif one != two:
            yield f"{above}{key}", [one, two]
    if was.keys() == now.keys() and list(was) != list(now):
        yield f"the order of {above.rstrip('.') or 'the keys'}", [list(was), list(now)]


def _folder(arm: Mapping[str, Any]) -> str:
    return str(arm.get("folder", arm["name"]))


def _ended(folder: Path, content: Mapping[str, Any]) -> dict[str, int]:
    """How many runs of a specification there are, and how many of them have ended."""
    places = [
        folder / _folder(arm) / f"seed_{seed}"
        for arm in content["arms"]
        for seed in content["study"]["seeds"]
    ]
    ended = sum(status.of(place) in status.ENDED for place in places)
    return {"ended": ended, "runs": len(places)}


def _changes(changed: Mapping[str, Sequence[Any]]) -> str:
    return "; ".join(
        f"{key} from {_value(was)} to {_value(now)}" for key, (was, now) in changed.items()
    )


def _value(value: Any) -> str:
    if value in (None, "", [], {}):
        return "nothing"
    return listed(list(value)) if isinstance(value, list | dict) else str(value)


def listed(values: Sequence[Any]) -> str:
    shown = ", ".join(map(str, values[:MOST]))
    return f"{shown} and {len(values) - MOST} more" if len(values) > MOST else shown


def amended(plan: Mapping[str, Any], key: str) -> str:
    """After how many runs a part of the specification was amended, in brackets; empty if never."""
    for change in reversed(plan.get("amendments") or []):
        if key in change["changed"] and change["ended"]:
            return f" (amended after {change['ended']} of {change['runs']} runs)"
    return ""


def remarks(plan: Mapping[str, Any]) -> list[str]:
    """What a reader should know of the history of a specification."""
    lines = list[str]()
    written = plan.get("written") or {"ended": 0}
    if written["ended"]:
        lines.append(
            f"The specification was written after {written['ended']} of {written['runs']} runs had"
            f" ended ({written['time']}): it did not predict these."
        )
    for change in plan.get("amendments") or []:
        lines.append(
            f"Amended after {change['ended']} of {change['runs']} runs ({change['time']}):"
            f" {_changes(change['changed'])}."
        )
    if plan.get("version") == studies.HASHING and studies.hashed(plan["study"]) != plan.get("hash"):
        lines.append(
            "study.json was changed by hand: its hash does not match the specification in it."
        )
    return lines
