"""Whether the runs that are compared are of one source; accepted.json keeps each difference that is accepted by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ablations.results import Results, Run
from ablations.specification import listed
from zoo.errors import ZooError, command, did_you_mean
from zoo.tracking.status import ENDED
from zoo.utils import files as atomic_files


def remarks(results: Results) -> list[str]:
    """Which runs are of another source than the others, and who is not judged for that."""
    told, accepted = list[str](), _accepted(results.folder)
    for module, kinds in differences(results.runs).items():
        if when := next(
            (entry["time"] for entry in accepted if _covers(entry, module, kinds)), None
        ):
            told.append(f"{_who(module, kinds)}: accepted ({when}).")
        else:
            told.append(
                f"{_who(module, kinds)}: no verdict on the arms that this concerns. Delete the folders of these runs"
                " and run them again, or accept the difference by name:"
                f" {command('ablations.report', str(results.folder), f'accept={module}')}"
            )
    ended = [run for run in results.runs if run.status in ENDED]
    unknown = sum(not _files(run) for run in ended)
    if 0 < unknown < len(ended):
        told.append(f"{unknown} of {len(ended)} runs have not recorded of what source they are.")
    return told


def _files(run: Run) -> list[Mapping[str, str]]:
    """The hashes of the files that a run used, by module; those it was begun with too, where it went on with others."""
    now = (run.summary.get("sources") or {}).get("files")
    return [*(run.summary.get("earlier_sources") or []), *([now] if now else [])]


def differences(runs: Sequence[Run]) -> dict[str, dict[str, list[Run]]]:
    """The modules whose source is not the same in all runs that used it: of each source, by its hash, the runs."""
    kinds: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        for files in _files(run) if run.status in ENDED else ():
            for module, digest in files.items():
                kinds.setdefault(module, {}).setdefault(digest, []).append(run)
    return {module: found for module, found in sorted(kinds.items()) if len(found) > 1}


def withheld(results: Results) -> dict[str, list[str]]:
    """The arms on which there is no verdict, as the source of a module differs within their runs and the baseline's."""
    accepted, found = _accepted(results.folder), dict[str, list[str]]()
    for arm in results.arms:
        both = [run for run in results.runs if run.arm in (arm, results.baseline)]
        modules = [
            module
            for module, kinds in differences(both).items()
            if not any(_covers(entry, module, kinds) for entry in accepted)
        ]
        if modules and arm != results.baseline:
            found[arm] = modules
    return found


def accept(results: Results, module: str) -> None:
    """Note in accepted.json that somebody takes the runs for comparable though the source of a module differs."""
    found = differences(results.runs)
    if module not in found:
        raise ZooError(
            f"accept={module}: no source of this name differs between the runs{did_you_mean(module, found)}"
        )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"source": module, "time": now, "sha256": sorted(found[module])}
    atomic_files.write_json(
        results.folder / "accepted.json", {"accepted": [*_accepted(results.folder), entry]}
    )


def _accepted(folder: Path) -> list[dict[str, Any]]:
    return list(atomic_files.read_json(folder / "accepted.json").get("accepted") or [])


def _covers(entry: Mapping[str, Any], module: str, kinds: Mapping[str, Any]) -> bool:
    return entry.get("source") == module and set(kinds) <= set(entry.get("sha256") or [])


def _who(module: str, kinds: Mapping[str, Sequence[Run]]) -> str:
    most, *others = sorted(kinds.values(), key=len, reverse=True)
    odd = [f"{run.arm} seed {run.seed}" for runs in others for run in runs]
    one = (most[0].summary.get("sources") or {}).get("components") or {}
    parts = ", ".join(name for name, place in one.items() if place == module)
    whose = f"{module} ({parts})" if parts else module
    others_of_it = f"{len(most)} run{'s' * (len(most) > 1)} that used it"
    return f"The source of {whose} is another one in {listed(odd)} than in the other {others_of_it}"
