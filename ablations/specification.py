"""The specification of a study in its folder: study.json only grows.

Each change of it is kept with its time, what it was and what it is, and how many runs had ended.
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

MOST = 6  # values named in a sentence


def record(plan: Plan) -> list[str]:
    """Write study.json, which keeps what it was before; gives what a person must know of that."""
    with writing(plan.folder) as before:
        foreseen(plan, before)
        changed = changes(before, plan.study)
        content = before | plan.as_json()
        now, ended = (
            datetime.now(UTC).isoformat(timespec="seconds"),
            _ended(plan.folder, before or plan.as_json()),
        )
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
            looks = (
                [*looks, look] if ended["ended"] or not looks else [*looks[:-1], look]
            )  # else nobody has seen a result
        content["looks"] = looks
        files.write_json(plan.folder / "study.json", content)
    return (
        [f"look {len(looks)} at this folder: the report halves α for each"]
        if len(looks) > 1
        else []
    )


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[dict[str, Any]]:
    """The content of study.json, empty where there is none, while no other process changes it."""
    folder.mkdir(parents=True, exist_ok=True)
    with locks.locked(folder / ".study", wait=True):
        yield read(folder)


def read(folder: Path) -> dict[str, Any]:
    content = files.read_json(folder / "study.json")
    if not content and (folder / "study.json").exists():
        raise ZooError(
            f"{folder / 'study.json'} is damaged, and has what was planned before the first run: bring it back, or"
            " move it away; then the report says that it was written after the runs"
        )
    return content


def foreseen(plan: Plan, before: Mapping[str, Any]) -> list[str]:
    """What this plan changes in the specification that its folder holds. Raises ZooError where that is of another study."""
    if not before:
        return []
    told, known = before.get("study") or {}, {_folder(arm) for arm in before.get("arms") or []}
    if told.get("name") != plan.study.name:
        raise ZooError(
            f"{plan.folder} holds study {told.get('name')!r}, and {plan.study.name!r} is another: choose another"
            " hydra.sweep.dir"
        )
    if not known & {arm.folder for arm in plan.arms[1:]}:
        raise ZooError(
            f"{plan.folder} holds another study of the name {plan.study.name!r} (arms {listed(sorted(known))}):"
            " choose another hydra.sweep.dir, or another name"
        )
    changed = changes(before, plan.study)
    ended = _ended(plan.folder, before)
    return (
        [
            f"the specification is amended after {ended['ended']} of {ended['runs']} runs, which the report says:"
            f" {_said(changed)}"
        ]
        if changed
        else []
    )


def changes(before: Mapping[str, Any], study: Study) -> dict[str, list[Any]]:
    """Each part of a specification that is another one now: what it was and what it is."""
    if not before:
        return {}
    was = {key: before["study"].get(key, value) for key, value in asdict(Study(study.name)).items()}
    return dict(
        _different(studies.plain(was), studies.plain(json.loads(json.dumps(asdict(study)))))
    )


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


def _ended(folder: Path, told: Mapping[str, Any]) -> dict[str, int]:
    """How many of the runs of a specification have ended, of how many."""
    places = [
        folder / _folder(arm) / f"seed_{seed}"
        for arm in told["arms"]
        for seed in told["study"]["seeds"]
    ]
    ended = sum(status.of(place) in status.ENDED for place in places)
    return {"ended": ended, "runs": len(places)}


def _said(changed: Mapping[str, Sequence[Any]]) -> str:
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
    """After how many runs a part of the specification was changed, for a sentence that relies on it; empty where it was not."""
    for change in reversed(plan.get("amendments") or []):
        if key in change["changed"] and change["ended"]:
            return f" (amended after {change['ended']} of {change['runs']} runs)"
    return ""


def remarks(plan: Mapping[str, Any]) -> list[str]:
    """What a reader must know of how a specification came to be as it is."""
    told, written = list[str](), plan.get("written") or {"ended": 0}
    if written["ended"]:
        told.append(
            f"The specification was written after {written['ended']} of {written['runs']} runs had ended"
            f" ({written['time']}): it predicts nothing of these."
        )
    for change in plan.get("amendments") or []:
        told.append(
            f"Amended after {change['ended']} of {change['runs']} runs ({change['time']}): {_said(change['changed'])}."
        )
    if plan.get("version") == studies.HASHING and studies.hashed(plan["study"]) != plan.get("hash"):
        told.append(
            "study.json was changed by hand: its hash is not that of the specification in it."
        )
    return told
