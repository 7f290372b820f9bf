"""What the arms of a comparison may spend: what their budgets were matched by, and how far they differ where they were not."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from ablations.results import Results
from ablations.study import TOLERANCE, UNITS
from zoo.metrics import number
from zoo.tracking.status import FINISHED

NAMED = {
    "parameters": "parameters",
    "active": "active parameters",
    "training_flops": "training FLOPs",
    "tokens": "tokens",
    "seconds": "seconds of training",
}


def remark(results: Results, arm: str) -> str:
    """What must be said beside an arm's difference from the baseline; empty where budgets agree and nothing was changed."""
    kind, matched = results.study.get("match", "none"), _planned(results, arm).get("matched")
    told = (
        [f"its {NAMED[UNITS[kind]] if kind in UNITS else 'budget'} matched by {matched}"]
        if matched
        else []
    )
    if apart := differences(results, arm):
        why = "what was not matched differs" if kind in UNITS else "budgets were not matched"
        told.append(f"{why}: {', '.join(apart)}")
    sentence = "; ".join(told)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _planned(results: Results, arm: str) -> Mapping[str, Any]:
    arms = results.plan["arms"] if results.plan else []
    return next((told for told in arms if told["name"] == arm), {})


def differences(results: Results, arm: str) -> list[str]:
    """By how much each budget of an arm is apart from the baseline's, in per cent, beyond what matching allows."""
    here, there = spent(results, arm), spent(results, results.baseline)
    if _dense(here) and _dense(there):
        here.pop("active", None)
    found = []
    for unit, name in NAMED.items():
        if (
            unit in here
            and there.get(unit)
            and abs(here[unit] - there[unit]) > TOLERANCE * there[unit]
        ):
            found.append(
                f"{name} {(here[unit] - there[unit]) / there[unit]:+.1%}".replace("-", "−").replace(
                    "%", " %"
                )
            )
    return found


def _dense(costs: Mapping[str, float]) -> bool:
    return costs.get("active") == costs.get("parameters")


def spent(results: Results, arm: str) -> dict[str, float]:
    """What a run of an arm costs, as planned; as its finished runs say where nobody planned it."""
    planned, runs = (
        _planned(results, arm),
        [run.summary for run in results.of(arm) if run.status == FINISHED],
    )
    found = {
        unit: value for unit in UNITS.values() if (value := number(planned.get(unit))) is not None
    }
    if not found and runs:
        known = {
            key: number(runs[0].get(key)) for key in ("parameters", "tokens", "flops_per_token")
        }
        found = {key: value for key, value in known.items() if value is not None}
        if "tokens" in found and "flops_per_token" in found:
            found["training_flops"] = found["tokens"] * found["flops_per_token"]
    seconds = [value for run in runs if (value := number(run.get("seconds"))) is not None]
    if results.study.get("match") == "seconds" and seconds:
        found["seconds"] = statistics.fmean(seconds)
    return found
