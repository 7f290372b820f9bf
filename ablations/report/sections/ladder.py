"""The steps of a ladder, each against the rung below it."""

from __future__ import annotations

import itertools

from ablations import stats
from ablations.report import figures
from ablations.report.html import Picture, Section, Table
from ablations.report.sections.parts import interval
from ablations.report.wording import p_value
from ablations.results import Results
from ablations.stats import Comparison, Effect
from zoo.errors import ZooError


def ladder(results: Results, compared: Comparison) -> Section | None:
    """Each rung against the one below it, and against the foot."""
    if results.study.get("design") != "ladder":
        return None
    runs, steps = results.outcomes(), dict[str, Effect]()
    for below, arm in itertools.pairwise(results.arms):
        try:
            steps[arm] = stats.compare(
                [run for run in runs if run.arm in (below, arm)],
                below,
                margin=compared.margin,
                cap=compared.cap,
                lower_is_better=compared.lower_is_better,
            )[arm]
        except ZooError:  # nothing ended of the rung below
            continue
    tested = {arm: step.p for arm, step in steps.items() if step.p is not None}
    corrected = dict(zip(tested, stats.holm(list(tested.values())), strict=True)) if tested else {}
    total = {effect.arm: effect for effect in compared.effects}
    rows = [
        [
            arm,
            *(interval(steps[arm]) if arm in steps else ["–", "–"]),
            p_value(corrected.get(arm)),
            *interval(total[arm]),
        ]
        for arm in results.arms
        if arm in total
    ]
    known = {arm: mean for arm in results.arms if (mean := results.table.mean(arm)) is not None}
    told = (
        "The order decides what a step is worth: with the rungs in another order, each could be"
        " worth more or less, so"
        " that no step here is a claim about its component. For such claims, take the same factors"
        " with design: factorial,"
        " which reports what each is worth over all orders (Shapley values)."
    )
    table = Table(
        ("rung", "step", "95 % interval", "p (paired t, Holm)", "from the foot", "95 % interval"),
        rows,
    )
    picture = (
        [Picture(figures.steps(results, known, f"mean {figures.axis(results)}"))]
        if results.baseline in known
        else []
    )
    return Section("Rung by rung", [told, table, *picture])
