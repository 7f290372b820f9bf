"""What each rung of a ladder is worth over all orders of the rungs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ablations.stats.estimates import Estimate, corrected, t_interval
from zoo.errors import ZooError


def shapley(
    values: Mapping[frozenset[str], Sequence[float]], *, alpha: float = 0.05
) -> tuple[Estimate, ...]:
    """What each rung of a ladder is worth: its step, averaged over every order of the rungs that
    was run (Shapley 1953).

    `values` has the losses of each set of rungs, seed by seed in one order of seeds; the empty set
    is the baseline. Each seed gives one such average, so that the interval is a t interval over
    seeds. With all 2^k sets it is over all k! orders; a rung whose step was seen only once is
    refused, as there the order decides.
    """
    rungs = sorted(frozenset().union(*values))
    sizes = {len(runs) for runs in values.values()}
    if frozenset() not in values or frozenset(rungs) not in values:
        raise ZooError(
            "a ladder needs the runs without any of its rungs, and those with all of them"
        )
    if len(sizes) > 1 or min(sizes) < 2:
        raise ZooError("give each set of rungs the same seeds, two at least")
    losses = {rung: np.asarray(runs, float) for rung, runs in values.items()}
    if not all(np.isfinite(runs).all() for runs in losses.values()):
        raise ZooError("a loss is not a finite number: give the cap for a run that diverged")
    up = {
        frozenset[str](): 1
    }  # by how many orders a set is reached from the empty one, and the full one from it
    for size in range(len(rungs)):
        for group in [group for group in losses if len(group) == size and group in up]:
            for after in (group | {rung} for rung in rungs if rung not in group):
                if after in losses:
                    up[after] = up.get(after, 0) + up[group]
    down = {frozenset(rungs): 1}
    for group in sorted(losses, key=len, reverse=True):
        if group not in down:
            down[group] = sum(down.get(group | {rung}, 0) for rung in rungs if rung not in group)
    orders = down[frozenset()]
    if not orders:
        raise ZooError("no order of the rungs was run from the first to the last")
    found = []
    for rung in rungs:
        steps = {
            group: up[group] * down[group | {rung}]
            for group in losses
            if group in up and rung not in group and down.get(group | {rung})
        }
        if len(steps) < 2 and len(rungs) > 1:
            raise ZooError(
                f"the order decides: {rung} was added to one set only, not told from its place: "
                "run the other orders, all 2^k sets at best"
            )
        parts = [
            weight / orders * (losses[group | {rung}] - losses[group])
            for group, weight in steps.items()
        ]
        notes = (
            ()
            if orders == math.factorial(len(rungs))
            else (f"over {orders} of {math.factorial(len(rungs))} orders",)
        )
        found.append(replace(t_interval(rung, np.sum(parts, axis=0), alpha), notes=notes))
    return corrected(found)
