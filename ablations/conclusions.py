"""From tests to sentences: what each arm is worth, how sure that is, and what cannot be said."""

from __future__ import annotations

from ablations import stats
from ablations.results import Results
from ablations.stats import Comparison, Effect
from zoo.registry import ZooError

NO_MARGIN = 1e-12  # stands for a margin that nobody stated: nothing is within it


def compare(results: Results) -> Comparison:
    """The primary test of the protocol, at half its α for each earlier look at other seeds or arms in this folder."""
    looks = len(results.plan.get("looks", [])) if results.plan else 1
    return stats.compare(results.outcomes(), results.baseline, margin=results.study.get("margin") or NO_MARGIN, cap=results.cap,
                         lower_is_better=not results.higher_is_better, look=max(1, looks))


def unit(metric: str) -> str:
    known = {"val/loss": "nats a token", "val/bits_per_byte": "bits a byte", "val/accuracy": "of accuracy"}
    return known.get(metric, f"of {metric}")


def sentence(effect: Effect, compared: Comparison, metric: str) -> str:
    """One arm against the baseline, in words that a reviewer can check against the table."""
    arm, base = effect.arm, compared.baseline
    lost = f" {effect.diverged} of its {effect.runs} runs diverged or learned nothing." if effect.diverged else ""
    if effect.difference is None:
        why = f"no run of it or of {base} learned anything" if effect.n else f"no run can be paired with {base}"
        return f"{arm}: {why}, so that nothing can be said.{lost}"
    measured = f"a difference of {signed(effect.difference)} {unit(metric)}{_percent(effect, metric)}"
    if effect.low is not None and effect.high is not None:
        measured += f", 95 % interval {signed(effect.low)} to {signed(effect.high)}"
    seeds = f"{effect.n} seed{'s' * (effect.n > 1)}"
    p = p_value(effect.p_holm)
    tested = f"; p {p if p.startswith('<') else f'= {p}'} after Holm's correction" if effect.p_holm is not None else ""
    if effect.verdict in ("better", "worse"):
        return f"{arm} is {effect.verdict} than {base}: {measured}{tested}, {seeds}.{lost}"
    if effect.verdict == "equivalent":
        return f"{arm} and {base} are equivalent: {measured}, within the margin of ±{compared.margin:g}; {seeds}.{lost}"
    if effect.verdict == "exploratory":
        return f"{arm} against {base} is not judged: {measured}, but {seeds} are too few for a verdict.{lost}"
    more = f" About {effect.needed} seeds would decide." if effect.needed else ""
    return f"{arm} against {base} is undecided: {measured}{tested}, {seeds}.{more}{lost}"


def _percent(effect: Effect, metric: str) -> str:
    """Where a share of the baseline says something: not of an accuracy, which is one already, nor of next to nothing."""
    said = effect.percent is not None and abs(effect.percent) < 1000 and "accuracy" not in metric
    return f" ({effect.percent:+.1f} %)".replace("-", "−") if said else ""


def remarks(results: Results, compared: Comparison | None) -> list[str]:
    """What a reader must know before believing it."""
    told = list(results.notes)
    levels = results.plan["arms"][0].get("levels") if results.plan else None
    if levels and results.baseline not in levels.values():
        told.append(f"The baseline is {', '.join(map(str, levels.values()))}.")
    if compared is None:
        return told
    if results.study.get("design") == "ladder":
        told.append("A rung has all the changes up to its own: its difference is that of all of them, not of the last.")
    if compared.margin == NO_MARGIN:
        told.append("No margin was stated, so that no arm can be called equivalent.")
    if compared.look > 1:
        told.append(f"This is look {compared.look} at this folder: tested at α = {compared.alpha:g} instead of .05.")
    if compared.rho is not None:
        told.append(f"Correlation of the arms over seeds (measured): ρ = {compared.rho:.2f}.")
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
            told.append(f"{arm}: {found}, {agrees} by the study.")
    return told


def judged(results: Results) -> tuple[Comparison | None, list[str]]:
    """The comparison, or None and why there is none."""
    try:
        return compare(results), []
    except ZooError as error:
        return None, [str(error)]


def signed(number: float) -> str:
    return f"{number:+.4f}".replace("-", "−")


def p_value(p: float | None) -> str:
    if p is None:
        return "–"
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
