"""Check that compared runs have the same source code; accepted.json keeps accepted differences."""

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
    """Which runs have other source code than the rest, and which arms get no verdict for that."""
    lines = list[str]()
    accepted = _accepted(results.folder)
    for module, kinds in differences(results.runs).items():
        times = [entry["time"] for entry in accepted if _covers(entry, module, kinds)]
        if times:
            lines.append(f"{_who(module, kinds)}: accepted ({times[0]}).")
        else:
            accepting = command("ablations.report", str(results.folder), f"accept={module}")
            lines.append(
                f"{_who(module, kinds)}: no verdict on the arms concerned. Delete the folders of"
                " these runs and run them again, or accept the difference by name:"
                f" {accepting}"
            )
    ended = [run for run in results.runs if run.status in ENDED]
    unknown = sum(not _files(run) for run in ended)
    if 0 < unknown < len(ended):
        lines.append(f"{unknown} of {len(ended)} runs have not recorded their source code.")
    return lines


def _files(run: Run) -> list[Mapping[str, str]]:
    """The hashes of the files that a run used, by module; one mapping for each time it resumed."""
    now = (run.summary.get("sources") or {}).get("files")
    return [*(run.summary.get("earlier_sources") or []), *([now] if now else [])]


def differences(runs: Sequence[Run]) -> dict[str, dict[str, list[Run]]]:
    """The modules whose source differs between the runs that used it: by its hash, the runs."""
    kinds: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        for files in _files(run) if run.status in ENDED else ():
            for module, digest in files.items():
                kinds.setdefault(module, {}).setdefault(digest, []).append(run)
    return {module: hashes for module, hashes in sorted(kinds.items()) if len(hashes) > 1}


def withheld(results: Results) -> dict[str, list[str]]:
    """The arms without a verdict, each with the modules whose source differs in its comparison."""
    accepted = _accepted(results.folder)
    arms = dict[str, list[str]]()
    for arm in results.arms:
        both = [run for run in results.runs if run.arm in (arm, results.baseline)]
        modules = [
            module
            for module, kinds in differences(both).items()
            if not any(_covers(entry, module, kinds) for entry in accepted)
        ]
        if modules and arm != results.baseline:
            arms[arm] = modules
    return arms


def accept(results: Results, module: str) -> None:
    """Note in accepted.json that the user accepts the difference in the source of a module."""
    different = differences(results.runs)
    if module not in different:
        raise ZooError(
            f"accept={module}: no source of this name differs between the runs"
            f"{did_you_mean(module, different)}"
        )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"source": module, "time": now, "sha256": sorted(different[module])}
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
    number = "1 run" if len(most) == 1 else f"{len(most)} runs"
    return f"The source of {whose} differs in {listed(odd)} from the other {number} that used it"
