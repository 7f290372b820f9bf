"""The mean difference over documents and seeds, both taken as samples."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ablations.stats.estimates import Estimate
from ablations.stats.paired_tests import t_test
from zoo.errors import ZooError


def documents(paired: ArrayLike, *, alpha: float = 0.05) -> Estimate:
    """The mean difference over (seeds, documents), both of them samples: V = V_seeds + V_documents
    - V_both.

    Clustered two ways (Cameron, Gelbach and Miller 2011), with the degrees of the smaller side.
    From one seed it holds for these weights only, and says so.
    """
    values = np.asarray(paired, float)
    if values.ndim != 2 or min(values.shape) < 1 or values.shape[1] < 2:
        raise ZooError(
            f"give differences as (seeds, documents), with two documents at least; this is"
            f" {values.shape}"
        )
    if not np.isfinite(values).all():
        raise ZooError(
            "a document's difference is not a finite number: leave its run out, and say so"
        )
    if not np.ptp(values):
        raise ZooError("the difference is the same in every document: is it the same model?")
    seeds, texts = values.shape
    parts = [values.var(ddof=1) / values.size, values.mean(0).var(ddof=1) / texts]
    if seeds > 1:
        parts.append(values.mean(1).var(ddof=1) / seeds)
    # by sampling error the sum may come out below one of its parts, or below 0
    variance = max(*parts, parts[-1] + parts[1] - parts[0] if seeds > 1 else 0.0)
    mean, se, df = (
        float(values.mean()),
        math.sqrt(variance),
        (min(seeds, texts) if seeds > 1 else texts) - 1,
    )
    reach = float(stats.t.isf(alpha / 2, df)) * se
    notes = () if seeds > 1 else ("one seed: it says nothing of other seeds",)
    return Estimate(
        "documents", mean, mean - reach, mean + reach, float(t_test(mean, se, df)), notes=notes
    )
