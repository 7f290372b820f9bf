"""Tables and cells that several sections share."""

from __future__ import annotations

from collections.abc import Sequence

from ablations.outcomes import mark, signed
from ablations.report.html import Table
from ablations.report.wording import marked, p_value
from ablations.stats import Effect, Estimate


def estimates(what: str, found: Sequence[Estimate]) -> Table:
    return Table(
        (what, "estimate", "95 % interval", "p (Holm)"),
        [[one.name, marked(one), ends_of(one), p_value(one.p_holm)] for one in found],
    )


def ends_of(found: Estimate | None) -> str:
    return f"{signed(found.low)} … {signed(found.high)}" if found else "–"


def interval(effect: Effect) -> list[str]:
    ends = [signed(end) for end in (effect.low, effect.high) if end is not None]
    difference = "–" if effect.difference is None else signed(effect.difference) + mark(effect.bad)
    return [difference, " … ".join(ends) or "–"]
