"""From tests to sentences: what each arm is worth, how sure that is, and what cannot be said."""

from __future__ import annotations

from ablations import specification, stats
from ablations.outcomes import mark, signed
from ablations.results import Results, sources
from ablations.results.judging import NO_MARGIN, crossed, factorial
from ablations.stats import FEW_DOCUMENTS, Comparison, Effect, Estimate, Factorial
from zoo import metrics
from zoo.errors import ZooError


def sentence(effect: Effect, compared: Comparison, metric: str) -> str:
    """One arm against the baseline, in words that a reviewer can check against the table."""
    arm, base = effect.arm, compared.baseline
    lost = (
        f" {effect.diverged} of its {effect.runs} runs diverged or learned nothing."
        if effect.diverged
        else ""
    )
    if there := compared.diverged.get(base):
        lost += f" {there} of the {compared.runs[base]} runs of {base} diverged or learned nothing."
    if effect.difference is None:
        why = (
            f"no run of it or of {base} learned anything"
            if effect.n
            else f"no run can be paired with {base}"
        )
        return f"{arm}: {why}, so that nothing can be said.{lost}"
    unit = metrics.of(metric).unit
    measured = f"a difference of {signed(effect.difference)} {unit}{_percent(effect, metric)}"
    if effect.low is not None and effect.high is not None:
        measured += f", 95 % interval {signed(effect.low)} to {signed(effect.high)}"
    seeds = f"{effect.n} seed{'s' * (effect.n > 1)}"
    tested = (
        f"; p {_equals(effect.p_holm)} after Holm's correction" if effect.p_holm is not None else ""
    )
    lost = over_documents(effect, compared) + lost
    if effect.verdict in ("better", "worse"):
        little = by_little(effect, compared)
        return f"{arm} is {effect.verdict} than {base}{little}: {measured}{tested}, {seeds}.{lost}"
    if effect.verdict == "equivalent":
        margin = f"within the margin of ±{compared.margin:g}"
        return f"{arm} and {base} are equivalent: {measured}, {margin}; {seeds}.{lost}"
    if effect.verdict == "withheld":
        why = "not all of their runs are of one source"
        return f"{arm} against {base} is not judged: {measured}, but {why}.{lost}"
    if effect.verdict == "exploratory":
        few = f"{seeds} {'are' if effect.n > 1 else 'is'} too few for a verdict"
        why = few if effect.n < stats.FEWEST else f"not all runs have ended ({seeds} so far)"
        return f"{arm} against {base} is not judged: {measured}, but {why}.{lost}"
    more = f" About {effect.needed} seeds would decide." if effect.needed else ""
    return f"{arm} against {base} is undecided: {measured}{tested}, {seeds}.{more}{lost}"


def by_little(effect: Effect, compared: Comparison) -> str:
    """What a difference that is there, and smaller than the margin, must not be said without."""
    little = (
        effect.verdict in ("better", "worse") and abs(effect.difference or 0.0) < compared.margin
    )
    return f", by less than what was said to matter (±{compared.margin:g})" if little else ""


def over_documents(effect: Effect, compared: Comparison) -> str:
    """The interval over documents and seeds, and where it does not bear the verdict out."""
    low, high, number, seeds = (
        effect.documents_low,
        effect.documents_high,
        effect.documents,
        effect.documents_seeds,
    )
    if number is None:
        return ""
    shown = f"{number:,} document{'s' * (number != 1)}"
    few = (
        f", too few to speak for others (fewer than {FEW_DOCUMENTS})"
        if number < FEW_DOCUMENTS
        else ""
    )
    lost = (
        f", of the {seeds} seeds that did not diverge"
        if seeds is not None and seeds < effect.n
        else ""
    )
    if low is None or high is None:
        return f" Judged on {shown}{few}{lost}." if few else ""
    doubt = ""
    if effect.verdict in ("better", "worse") and low <= 0 <= high:
        doubt = ", which includes 0"
    elif effect.verdict == "equivalent" and max(-low, high) >= compared.margin:
        doubt = ", which reaches beyond the margin"
    interval = f"{signed(low)} to {signed(high)}{doubt}"
    return f" 95 % interval over documents and seeds {interval}; {shown}{few}{lost}."


def doubts(compared: Comparison) -> list[str]:
    """What stands in the sentences beside the verdicts, for a table that has only these."""
    told = []
    for effect in compared.effects:
        if effect.verdict in ("better", "worse", "equivalent"):
            verdict, over = (
                effect.verdict + by_little(effect, compared),
                over_documents(effect, compared),
            )
            if verdict != effect.verdict or over:
                told.append(f"{effect.arm}: {verdict}.{over}")
    return told


def _percent(effect: Effect, metric: str) -> str:
    """Where a share of the baseline says something: not of a metric that is one already, nor of
    next to nothing.
    """
    said = (
        effect.percent is not None and abs(effect.percent) < 1000 and not metrics.of(metric).share
    )
    return f" ({effect.percent:+.1f} %)".replace("-", "−") if said else ""


def warnings(results: Results, compared: Comparison | None) -> list[str]:
    """Which numbers are not to be read by themselves, as other factors decide them."""
    if compared is None or not crossed(results):
        return []
    try:
        return dependent(factorial(results, compared), compared)
    except ZooError:  # the section says why
        return []


def dependent(found: Factorial, compared: Comparison) -> list[str]:
    """Of each interaction that is there, which main effects are not to be read by themselves, and
    what to read instead.
    """
    told = []
    for one in found.interacting(compared.alpha):
        names = " and ".join(
            f"{factor}={level}" for factor, level in dict.fromkeys(found.parts[one.name])
        )
        within = ", ".join(f"{effect.name} {marked(effect)}" for effect in found.within(one.name))
        told.append(
            f"The main effects of {names} are not to be read by themselves, as they interact"
            f" ({one.name}"
            f" {marked(one)}, p {_equals(one.p_holm)}): each is an average over effects that differ"
            + (f" ({within})." if within else ".")
        )
    return told


def marked(one: Estimate) -> str:
    """An estimate with the mark of runs that learned nothing, where such are in it."""
    return signed(one.value) + mark(one.capped)


def integrity(results: Results) -> list[str]:
    """What was changed since the first run: in what was planned, or in what the runs are made
    of.
    """
    return [*specification.remarks(results.plan or {}), *sources.remarks(results)]


def remarks(results: Results, compared: Comparison | None) -> list[str]:
    """What a reader must know before believing it."""
    told = [*results.notes, *integrity(results)]
    levels = results.plan["arms"][0].get("levels") if results.plan else None
    if levels and results.baseline not in levels.values():
        told.append(f"The baseline is {', '.join(map(str, levels.values()))}.")
    if compared is None:
        return told
    tuned = results.plan.get("tuned") or {} if results.plan else {}
    if edges := [arm for arm, found in tuned.items() if found.get("at_the_edge")]:
        told.append(
            f"{', '.join(edges)}: tuned to the edge of the grid, beyond which there may be better."
        )
    if results.pending:
        told.append(
            f"{results.pending} of {len(results.runs)} runs are still to end: no verdict before"
            f" they have, as one that"
            " is looked for half way is found in noise."
        )
    if results.study.get("design") == "ladder":
        told.append(
            "A rung has all the changes up to its own: its difference is that of all of them, not"
            " of the last."
        )
    if compared.margin == NO_MARGIN:
        told.append("No margin was stated, so that no arm can be called equivalent.")
    if compared.look > 1:
        told.append(
            f"This is look {compared.look} at this folder: tested at α = {compared.alpha:g}"
            f" instead of .05."
        )
    if compared.rho is not None:
        told.append(f"Correlation of the arms over seeds (measured): ρ = {compared.rho:.2f}.")
    told += warnings(results, compared)
    told += compared.notes
    noted: dict[str, list[str]] = {}
    for effect in compared.effects:
        for note in effect.notes:
            noted.setdefault(note, []).append(effect.arm)
    for note, arms in noted.items():
        whose = "every arm" if len(arms) == len(compared.effects) > 2 else ", ".join(arms)
        told.append(f"{whose}: {note}")
    expected = results.study.get("expected") or {}
    for arm, verdict in expected.items():
        found = next((effect.verdict for effect in compared.effects if effect.arm == arm), None)
        if found is not None:
            agrees = "as expected" if found == verdict else f"where {verdict} was expected"
            when = specification.amended(results.plan or {}, f"expected.{arm}")
            told.append(f"{arm}: {found}, {agrees} by the study{when}.")
    return told


def _equals(p: float | None) -> str:
    """A p in a sentence, after the letter."""
    shown = p_value(p)
    return shown if shown.startswith("<") else f"= {shown}"


def p_value(p: float | None) -> str:
    if p is None:
        return "–"
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
