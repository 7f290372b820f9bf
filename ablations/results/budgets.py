"""Compare the budgets of arms: what matched them, and how far they differ where nothing did."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
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
    """The remark on an arm's budget; empty where budgets agree and nothing was changed."""
    kind = results.study.get("match", "none")
    matched = _planned(results, arm).get("matched")
    parts = []
    if matched:
        budget = NAMED[UNITS[kind]] if kind in UNITS else "budget"
        parts.append(f"its {budget} matched by {matched}")
    if apart := differences(results, arm):
        why = "what was not matched differs" if kind in UNITS else "budgets were not matched"
        parts.append(f"{why}: {', '.join(apart)}")
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _planned(results: Results, arm: str) -> Mapping[str, Any]:
    arms = results.plan["arms"] if results.plan else []
    return next((planned for planned in arms if planned["name"] == arm), {})


def differences(results: Results, arm: str) -> list[str]:
    """The budgets of an arm that differ from the baseline's by more than matching allows."""
    here, there = spent(results, arm), spent(results, results.baseline)
    if _dense(here) and _dense(there):
        here.pop("active", None)
    apart = []
    for unit, name in NAMED.items():
        if unit not in here or not there.get(unit):
            continue
        relative = (here[unit] - there[unit]) / there[unit]
        if abs(relative) > TOLERANCE:
            percent = f"{100 * relative:+.1f}".replace("-", "−")
            apart.append(f"{name} {percent} %")
    return apart


def _dense(costs: Mapping[str, float]) -> bool:
    return costs.get("active") == costs.get("parameters")


def spent(results: Results, arm: str) -> dict[str, float]:
    """What a run of an arm costs, as planned; without a plan, by its finished runs."""
    runs = [run.summary for run in results.of(arm) if run.status == FINISHED]
    costs = _numbers(_planned(results, arm), UNITS.values())
    if not costs and runs:
        costs = _numbers(runs[0], ("parameters", "tokens", "flops_per_token"))
        if "tokens" in costs and "flops_per_token" in costs:
            costs["training_flops"] = costs["tokens"] * costs["flops_per_token"]
    seconds = [number(run.get("seconds")) for run in runs]
    known = [value for value in seconds if value is not None]
    if results.study.get("match") == "seconds" and known:
        costs["seconds"] = statistics.fmean(known)
    return costs


def _numbers(content: Mapping[str, Any], keys: Iterable[str]) -> dict[str, float]:
    """The values of these keys that are numbers."""
    values = {key: number(content.get(key)) for key in keys}
    return {key: value for key, value in values.items() if value is not None}
