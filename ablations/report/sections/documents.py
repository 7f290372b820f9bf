"""Differences paired by document, over documents alone and over documents and seeds."""

from __future__ import annotations

from ablations import stats
from ablations.outcomes import mark, signed
from ablations.report.html import Section, Table
from ablations.report.sections.parts import ends_of
from ablations.results import Results, judging
from ablations.stats import Comparison
from zoo.errors import ZooError


def documents(results: Results, compared: Comparison) -> Section | None:
    """Differences paired by document, over documents alone, and over documents and seeds."""
    rows = []
    for effect in compared.effects:
        paired = judging.paired_documents(results, effect.arm)
        if paired is None:
            continue
        try:
            texts = stats.documents(paired.mean(0, keepdims=True))
            seeds = stats.documents(paired) if len(paired) > 1 else None
        except ZooError:
            continue
        rows.append(
            [
                effect.arm,
                str(len(paired)),
                f"{paired.shape[1]:,}",
                signed(texts.value) + mark(effect.bad),
                ends_of(texts),
                ends_of(seeds),
            ]
        )
    if not rows:
        return None
    told = (
        "The loss of the same documents in every arm, each counting the same however long, in nats"
        " per token. The first"
        " interval is of"
        " the mean over the seeds: it says what these trained models would do on other documents"
        " of this kind, and"
        " nothing of other seeds. The second takes both as samples (Cameron, Gelbach and Miller"
        " 2011). Each is of its arm"
        " alone, not corrected for the number of arms; runs that diverged or did not finish have"
        " no loss"
        " by document, and are not in it."
    )
    columns = (
        "arm",
        "seeds",
        "documents",
        "difference",
        "95 % over documents",
        "95 % over documents and seeds",
    )
    return Section("Paired by document", [told, Table(columns, rows)])
