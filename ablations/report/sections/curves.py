"""Training curves, runs that learned nothing, and the loss by position."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ablations.report import figures
from ablations.report.html import Part, Picture, Section, Table
from ablations.report.wording import p_value
from ablations.results import Results
from ablations.stats import Comparison
from zoo.tracking.status import FAILED


def training(results: Results) -> Section | None:
    if not any(
        len(run.curve(name)) for run in results.runs for name in {results.metric, "train/loss"}
    ):
        return None
    legend = ["Points and bands: mean and standard deviation over seeds of each evaluation."]
    if results.metric == "val/loss":
        legend.append("Thin lines: the training loss, smoothed.")
    if any(run.diverged for run in results.outcomes()):
        legend.append("A line ends where a run of its arm diverged.")
    parts: list[Part] = [" ".join(legend)]
    if len(results.arms) > len(figures.COLOURS):
        parts.append(
            f"Of the {len(results.arms)} arms, the baseline and the best are in colours, here and"
            " below; the others are grey, and here without bands."
        )
    return Section("Training curves", [*parts, Picture(figures.curves(results))])


def divergence(results: Results, compared: Comparison | None) -> Section | None:
    """How runs ended that learned nothing; only where some did."""
    p = {effect.arm: effect.divergence_p for effect in compared.effects} if compared else {}
    rows = []
    for arm in results.arms:
        runs = [run for run in results.outcomes() if run.arm == arm]
        ended = [run for run in runs if run.ended]
        diverged = sum(run.diverged for run in ended)
        stuck = sum(run.bad for run in ended) - diverged
        failed = Counter(run.status for run in runs)[FAILED]
        if stuck or diverged or failed or arm == results.baseline:
            rows.append(
                [
                    arm,
                    str(len(ended)),
                    str(diverged),
                    str(stuck),
                    str(failed),
                    "baseline" if arm == results.baseline else p_value(p.get(arm)),
                ]
            )
    if not any("".join(row[2:5]).strip("0") for row in rows):
        return None
    told = (
        "Diverged and stuck runs are outcomes, none is dropped; failed ones ended by an error and"
        " count nowhere. Arms that"
        " are not here had none. p is of Fisher's exact test of the share that diverged or is"
        " stuck against the baseline's,"
        " not corrected."
    )
    return Section(
        "Runs that learned nothing",
        [
            told,
            Table(
                ("arm", "ended", "diverged", "stuck at the unigram loss", "failed", "p (exact)"),
                rows,
            ),
        ],
    )


def positions(results: Results) -> Section | None:
    """The loss at each position of a block: the mean over an arm's seeds, where none of them
    diverged.
    """
    found, lost = {}, list[str]()
    trained = (results.runs[0].config.get("loader") or {}).get("length")
    for arm in results.arms:
        if any(run.diverged for run in results.outcomes() if run.arm == arm):
            lost.append(arm)
            continue
        each = [losses for run in results.of(arm) if (losses := run.by_position) is not None]
        if each and len({len(losses) for losses in each}) == 1:
            found[arm] = np.mean(each, axis=0)
    if not found:
        return None
    longer = {
        arm: losses
        for arm, losses in found.items()
        if isinstance(trained, int) and len(losses) > trained
    }
    rows = [
        [arm, *(f"{np.nanmean(part):.4f}" for part in (losses[:trained], losses[trained:]))]
        for arm, losses in longer.items()
    ]
    table = (
        [Table(("arm", f"mean loss within the {trained} trained on", "beyond"), rows)]
        if longer
        else []
    )
    picture = Picture(figures.positions(results, found, trained if longer else None))
    told = [f"Not here, as runs of them diverged: {', '.join(lost)}."] if lost else []
    return Section("Loss by position", [*told, picture, *table])
