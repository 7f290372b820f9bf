"""What tuning chose for each arm, and the best to be expected of so many trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations import outcomes, stats
from ablations.outcomes import Outcome, shown
from ablations.report import figures
from ablations.report.html import Picture, Section, Table
from ablations.results import Results
from zoo import metrics


def tuning(results: Results) -> Section | None:
    tuned, asked = (results.plan or {}).get("tuned"), results.study.get("tune")
    if not tuned or not asked:
        return None
    rows, best, lower = [], {}, results.measure.lower_is_better
    varied = {option for option, values in asked["grid"].items() if len(values) > 1}
    means = {arm: [metrics.number(mean) for mean in told["means"]] for arm, told in tuned.items()}
    reached = {arm: [mean for mean in found if mean is not None] for arm, found in means.items()}
    runs = [
        Outcome(arm, place, mean)
        for arm, found in means.items()
        for place, mean in enumerate(found)
    ]
    counted = outcomes.arranged(
        outcomes.settled(runs, results.cap, lower), results.cap
    )  # None is a trial that diverged
    for arm, told in tuned.items():
        edges, ended = [option for option in told["at_the_edge"] if option in varied], reached[arm]
        rows.append(
            [
                arm,
                _point(told["point"]) or "nothing",
                ", ".join(edges) or "–",
                shown((min if lower else max)(ended) if ended else None),
                f"{len(ended)}/{len(means[arm])}",
            ]
        )
        if arm in results.arms and len(counted.values[arm]) == len(means[arm]):
            best[arm] = stats.expected_best(
                list(counted.values[arm].values()), lower_is_better=lower
            )
    grid = "; ".join(
        f"{option}: {', '.join(map(str, values))}" for option, values in asked["grid"].items()
    )
    number = len(next(iter(means.values())))
    parts: list[str | Table | Picture] = [
        f"Every arm was tried at the same {number} points ({grid}) on seeds of their own"
        f" ({', '.join(map(str, asked['seeds']))}); the runs that count have other seeds. What was"
        f" best is used."
    ]
    if any(row[2] != "–" for row in rows):
        parts.append(
            "Where the best is at the edge of the grid, there may be a better one beyond it: widen"
            " the grid."
        )
    parts.append(
        Table(
            (
                "arm",
                "chosen",
                "at the edge",
                f"best mean {results.metric}",
                "trials that ended well",
            ),
            rows,
        )
    )
    if not all(reached.values()):
        parts.append("Where no trial ended well, nothing was chosen, and the arm ran as it is.")
    if best:
        parts += [
            "The best to be expected of so many trials in a random order (Dodge et al. 2019):"
            " where the lines cross, who"
            " is ahead depends on how long one tunes." + _lost(counted),
            Picture(figures.trials(results, best)),
        ]
    return Section("Tuning", parts)


def _lost(counted: outcomes.Table) -> str:
    """What the trials count as that did not end well."""
    values = {counted.values[arm][place] for arm, places in counted.bad.items() for place in places}
    return f" A trial that diverged counts at {shown(max(values))}." if values else ""


def _point(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{option}={value}" for option, value in point.items())
