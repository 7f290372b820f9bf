"""Compares the arms of a study's runs: the primary test, paired documents, the factors of its
design.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ablations import stats
from ablations.results import Results, sources
from ablations.stats import Array, Comparison, Factorial
from zoo.errors import ZooError
from zoo.tracking.status import FINISHED

NO_MARGIN = 1e-12  # stands for a margin that nobody stated: nothing is within it


def compare(results: Results) -> Comparison:
    """The primary test of the protocol, at half its α for each earlier look at other seeds or
    arms in this folder.
    """
    looks = len(results.plan.get("looks", [])) if results.plan else 1
    found = stats.compare(
        results.outcomes(),
        results.baseline,
        margin=results.study.get("margin") or NO_MARGIN,
        cap=results.cap,
        lower_is_better=results.measure.lower_is_better,
        look=max(1, looks),
    )
    found = replace(
        found,
        effects=tuple(
            replace(effect, **_over_documents(results, effect.arm)) for effect in found.effects
        ),
    )
    if results.pending:  # a verdict now would be a look that the specification does not have
        early = (replace(effect, verdict="exploratory", needed=None) for effect in found.effects)
        found = replace(found, effects=tuple(early))
    if without := sources.withheld(results):
        judged = (
            replace(effect, verdict="withheld", needed=None) if effect.arm in without else effect
            for effect in found.effects
        )
        found = replace(found, effects=tuple(judged))
    return found


def paired_documents(results: Results, arm: str) -> Array | None:
    """The difference from the baseline of each document's loss, (seeds, documents), of the seeds
    that finished in both.
    """
    here, there = (
        {
            run.seed: losses
            for run in results.of(name)
            if run.status == FINISHED and (losses := run.by_document) is not None
        }
        for name in (arm, results.baseline)
    )
    both = [
        (here[seed], there[seed])
        for seed in sorted(here.keys() & there.keys())
        if len(here[seed]) == len(there[seed])
    ]
    if not both or len({len(losses) for losses, _ in both}) > 1:
        return None
    paired = np.array([losses - other for losses, other in both])
    return np.asarray(paired[:, np.isfinite(paired).all(0)])


def _over_documents(results: Results, arm: str) -> dict[str, Any]:
    """How many documents an arm was judged on, and the interval over them and the seeds; of the
    loss, which alone has them.
    """
    paired = paired_documents(results, arm) if results.metric == "val/loss" else None
    if paired is None:
        return {}
    found: dict[str, Any] = {"documents": paired.shape[1], "documents_seeds": len(paired)}
    if len(paired) > 1:
        with suppress(ZooError):  # one document, or the same difference in all
            over = stats.documents(paired)
            found |= {"documents_low": over.low, "documents_high": over.high}
    return found


def crossed(results: Results) -> bool:
    """Whether factors were varied together, so that there are effects of each and interactions."""
    return results.study.get("design") in ("factorial", "fractional") and all(
        levels(results).values()
    )


def levels(results: Results) -> dict[str, dict[str, str]]:
    """Of each arm, the level of each factor as short as it can be said; factors that vary
    together are one.
    """
    known = results.levels
    pairs = results.study.get("pairs") or []
    short: dict[str, dict[str, str]] = {}
    for factor in {factor: None for levels in known.values() for factor in levels}:
        names = list(dict.fromkeys(levels[factor] for levels in known.values() if factor in levels))
        values = [name.rpartition("=")[2] if name.count("=") == 1 else name for name in names]
        short[factor] = dict(
            zip(names, values if len(set(values)) == len(names) else names, strict=True)
        )
    found: dict[str, dict[str, str]] = {}
    for arm in results.arms:
        axes: dict[str, list[str]] = {}
        for factor, level in known.get(arm, {}).items():
            group = next((" & ".join(pair) for pair in pairs if factor in pair), factor)
            axes.setdefault(group, []).append(short[factor][level])
        found[arm] = {axis: " & ".join(chosen) for axis, chosen in axes.items()}
    return found


def factorial(results: Results, compared: Comparison) -> Factorial:
    """The effects of a design's factors. Raises ZooError where its arms, or those that ended,
    cannot tell them.
    """
    return stats.factorial(
        results.outcomes(),
        levels(results),
        cap=compared.cap,
        lower_is_better=compared.lower_is_better,
    )


def judged(results: Results) -> tuple[Comparison | None, list[str]]:
    """The comparison, or None and why there is none."""
    try:
        return compare(results), []
    except ZooError as error:
        return None, [str(error)]
