"""What a report says below its first screen, each section as sentences, tables and pictures that a page and a text both show.

A section that these runs have nothing for is not there; a number that they do not allow is a dash, or a sentence why.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ablations import design, stats
from ablations.outcomes import MARK, mark, signed
from ablations.report import figures, tuning, wording
from ablations.report.html import Picture, Section, Table
from ablations.report.wording import marked, p_value
from ablations.results import Results
from ablations.stats import Comparison, Effect, effects
from ablations.stats.effects import Estimate, Factorial
from zoo.errors import ZooError
from zoo.tracking.status import FAILED, FINISHED

BUDGET = (
    "trainer.max_steps",
    "trainer.eval_every",
    "trainer.log_every",
    "trainer.checkpoint_every",
    "seed",
)
Sets = dict[frozenset[str], list[float]]
Values = Mapping[str, Mapping[int, float]]  # of each arm, by seed
Levels = Mapping[str, Mapping[str, str]]  # of each arm, by factor
ROMAN = {3: "III", 4: "IV", 5: "V", 6: "VI", 7: "VII", 8: "VIII"}
MOST_PAIRS = 6  # of factors, whose interaction is drawn
COSTS = (
    ("flops_per_token", "FLOPs a token"),
    ("parameters", "parameters"),
    ("seconds", "seconds of training"),
)


def sections(results: Results, compared: Comparison | None) -> list[Section]:
    """All that these runs have something for, in the order of the report."""
    found = [training(results)]
    if compared is not None:
        found += [
            factorial(results, compared),
            ladder(results, compared),
            documents(results, compared),
        ]
    found += [
        cost(results, compared),
        tuning.tuning(results),
        divergence(results, compared),
        positions(results),
    ]
    return [_noted(section, results.table.note) for section in found if section is not None]


def _noted(section: Section, note: str | None) -> Section:
    """A section of which something has the mark of runs that learned nothing, with what that mark stands for."""
    text = "".join(
        part
        if isinstance(part, str)
        else part.svg
        if isinstance(part, Picture)
        else "".join(cell for row in part.rows for cell in row)
        for part in section.parts
    )
    return replace(section, parts=[*section.parts, note]) if note and MARK in text else section


def training(results: Results) -> Section | None:
    if not any(
        len(run.curve(name)) for run in results.runs for name in {results.metric, "train/loss"}
    ):
        return None
    told = [
        "Points and bands: the evaluations' mean and standard deviation over seeds."
        + (" Thin lines: the loss of training, smoothed." if results.metric == "val/loss" else "")
        + (
            " A line ends where a run of its arm diverged."
            if any(run.diverged for run in results.outcomes())
            else ""
        )
    ]
    if len(results.arms) > len(figures.COLOURS):
        told += [
            f"Of the {len(results.arms)} arms, the baseline and the best are in colours, here and below; the others"
            " are grey, and here without bands."
        ]
    return Section("As training goes on", [*told, Picture(figures.curves(results))])


def factorial(results: Results, compared: Comparison) -> Section | None:
    """Main effects and interactions; of two choices each, also what each factor is worth over all orders of adding it."""
    if not wording.crossed(results):
        return None
    kind, levels = results.study["design"], wording.levels(results)
    told: list[str | Table | Picture] = [
        "A main effect is that of a choice against its factor's first one, averaged over the other factors; an interaction is"
        " how much one effect changes with the other factor. Each seed gives one of each, by least squares over its arms, and"
        " the interval is a t interval over the seeds; p after Holm's correction over this table."
    ]
    try:
        found = wording.factorial(results, compared)
    except ZooError as error:
        return Section("Main effects and interactions", [f"Not estimated: {error}."])
    if len(found.seeds) < stats.FEWEST:
        told.append(f"Exploratory: fewer than {stats.FEWEST} seeds an arm.")
    if len(found.seeds) < max(compared.runs.values()):
        told.append(f"Of the seeds that ended in every arm: {', '.join(map(str, found.seeds))}.")
    if kind == "fractional" and (words := design.resolution(len(next(iter(levels.values()))))):
        mixed = [one.name for one in found.effects if " = " in one.name]
        told.append(
            f"A fraction of resolution {ROMAN.get(words, words)}: each main effect is one with interactions of"
            f" {words - 1} factors and more, which are taken to be nothing."
            + (
                " Of the interactions of two, those that it cannot tell apart stand as one, with = between them."
                if mixed
                else " Interactions of two are one with interactions of three and more."
            )
        )
    values, sign = results.table.values, results.table.mark(*levels)
    told += [
        *wording.dependent(found, compared),
        _main(found, compared.alpha),
        Picture(
            figures.estimates(found.effects, compared.margin, f"effect in {results.measure.unit}")
        ),
        Picture(figures.interactions(_pairs(values, levels), figures.axis(results) + sign)),
    ]
    if found.simple:
        told += [
            "A simple effect is that of a choice against its factor's first one within one choice of another factor,"
            " averaged over the rest: what to read where the two interact. Intervals are of each by itself; p after Holm's"
            " correction over this table.",
            _estimates("simple effect", found.simple),
        ]
    if found.constant:
        told.append(
            f"The same in every seed, so that there is no interval to give: {', '.join(found.constant)}."
        )
    try:
        worth = effects.shapley(_sets(values, levels, results.baseline))
    except ZooError:
        worth = ()
    if worth:
        told += [
            "What each factor's second choice is worth, averaged over every order of adding the factors (Shapley 1953):"
            " unlike the steps of one ladder, these do not depend on an order, and sum to the whole difference.",
            _estimates("factor", [replace(one, capped=bool(sign)) for one in worth]),
        ]
    return Section("Main effects and interactions", told)


def _main(found: Factorial, alpha: float) -> Table:
    """Main effects and interactions; beside a main effect, what it depends on."""
    table, partners = _estimates("effect", found.effects), dict[str, dict[str, None]]()
    for one in found.interacting(alpha):
        names = [f"{factor}={level}" for factor, level in found.parts[one.name]]
        for name in names:
            partners.setdefault(name, {}).update(
                dict.fromkeys(other for other in names if other != name)
            )
    if not partners:
        return table
    rows = [[*row, ", ".join(partners.get(row[0], ())) or "–"] for row in table.rows]
    return Table((*table.columns, "not by itself: depends on"), rows)


def _pairs(values: Values, levels: Levels) -> list[Any]:
    """Of each two factors the mean at each two levels; those that are furthest from adding up, first."""
    sized = []
    for one, two in itertools.combinations(next(iter(levels.values())), 2):
        groups: dict[tuple[str, str], list[float]] = {}
        for arm, at in levels.items():
            groups.setdefault((at[one], at[two]), []).extend(values.get(arm, {}).values())
        means = {key: float(np.mean(found)) for key, found in groups.items() if found}
        left, right = (
            {
                key[side]: [mean for other, mean in means.items() if other[side] == key[side]]
                for key in means
            }
            for side in (0, 1)
        )
        centre = np.mean(list(means.values()))
        apart = max(
            abs(mean - np.mean(left[a]) - np.mean(right[b]) + centre)
            for (a, b), mean in means.items()
        )
        sized.append((-apart, one, two, means))
    return [tuple(row[1:]) for row in sorted(sized, key=lambda row: row[0])[:MOST_PAIRS]]


def _sets(values: Values, levels: Levels, baseline: str) -> Sets:
    """The values of each set of factors at their second choice, in the seeds that ended in all of them."""
    first = levels[baseline]
    seeds = sorted(set.intersection(*(set(values[arm]) for arm in levels)))
    changed = {
        arm: frozenset(f"{axis}={level}" for axis, level in at.items() if level != first[axis])
        for arm, at in levels.items()
    }
    found = {names: [values[arm][seed] for seed in seeds] for arm, names in changed.items()}
    if len(frozenset().union(*found)) != len(first) or len(found) != 2 ** len(first):
        raise ZooError("not every set of factors was run")
    return found


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
            *(_interval(steps[arm]) if arm in steps else ["–", "–"]),
            p_value(corrected.get(arm)),
            *_interval(total[arm]),
        ]
        for arm in results.arms
        if arm in total
    ]
    known = {arm: mean for arm in results.arms if (mean := results.table.mean(arm)) is not None}
    told = (
        "The order decides what a step is worth: with the rungs in another order, each could be worth more or less, so"
        " that no step here is a claim about its component. For such claims, take the same factors with design: factorial,"
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


def documents(results: Results, compared: Comparison) -> Section | None:
    """Differences paired by document, over documents alone, and over documents and seeds."""
    rows = []
    for effect in compared.effects:
        paired = wording.paired_documents(results, effect.arm)
        if paired is None:
            continue
        try:
            texts = effects.documents(paired.mean(0, keepdims=True))
            seeds = effects.documents(paired) if len(paired) > 1 else None
        except ZooError:
            continue
        rows.append(
            [
                effect.arm,
                str(len(paired)),
                f"{paired.shape[1]:,}",
                signed(texts.value) + mark(effect.bad),
                _ends(texts),
                _ends(seeds),
            ]
        )
    if not rows:
        return None
    told = (
        "The loss of the same documents in every arm, each counting the same however long, in nats per token. The first"
        " interval is of"
        " the mean over the seeds: it says what these trained models would do on other documents of this kind, and"
        " nothing of other seeds. The second takes both as samples (Cameron, Gelbach and Miller 2011). Each is of its arm"
        " alone, not corrected for the number of arms; runs that diverged or did not finish have no loss"
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


def cost(results: Results, compared: Comparison | None) -> Section:
    """Quality against cost, and where the baseline was run at several budgets, effects as compute."""
    picture = figures.cost(results, COSTS)
    shown: list[str | Table | Picture] = (
        [Picture(picture)] if picture else ["All runs cost the same."]
    )
    if compared is not None and results.metric == "val/loss":
        shown += compute(results, compared)
    return Section("What it costs", shown)


def compute(results: Results, compared: Comparison) -> list[str | Table | Picture]:
    """Effects as equivalent compute, along the baseline's own runs of separate full schedules; or how to get that."""
    base, spent = _words(results, results.baseline), dict[str, float]()
    curve, left_out = list[tuple[float, float]](), list[tuple[float, float]]()
    for arm in results.arms:
        run = next((run for run in results.of(arm) if run.status == FINISHED), None)
        told = run.summary if run else {}
        per_token, tokens, loss = (
            told.get("flops_per_token"),
            told.get("tokens"),
            results.table.mean(arm),
        )
        if (
            isinstance(per_token, int | float)
            and isinstance(tokens, int | float)
            and loss is not None
        ):
            spent[arm] = float(per_token) * tokens
            if _words(results, arm) == base:
                (left_out if compared.diverged.get(arm) else curve).append((spent[arm], loss))
    if len(curve) < 2:
        steps = (results.of(results.baseline)[0].config.get("trainer") or {}).get("max_steps")
        some = [steps, steps // 2, 2 * steps] if isinstance(steps, int) else ["N", "N/2", "2N"]
        factor = ", ".join(f"trainer.max_steps={number}" for number in some)
        return [
            "Equivalent compute is not known: it takes runs of the baseline at other budgets, each with its full schedule."
            f" Add the factor `budget: [{factor}]` to the study to get it."
        ]
    rows = []
    for effect in compared.effects:
        if (
            effect.arm not in spent
            or _words(results, effect.arm) == base
            or effect.mean is None
            or effect.difference is None
        ):
            continue
        low, high = (
            None if end is None else effect.mean - effect.difference + end
            for end in (effect.low, effect.high)
        )
        times = [
            "–" if loss is None else _times(curve, loss, spent[effect.arm])
            for loss in (effect.mean, high, low)
        ]
        rows.append(
            [
                effect.arm,
                f"{spent[effect.arm]:.3g}",
                times[0] + results.table.mark(effect.arm),
                *times[1:],
            ]
        )
    about = (
        f"Equivalent compute: how much more (or less) than the arm's own training compute the baseline needs for its"
        f" loss, read between the baseline's {len(curve)} budgets, each a full schedule of its own, on a logarithmic scale"
        " and never beyond them. The ends are those of the effect's 95 % interval; the error of the baseline's curve"
        " is not in them."
    )
    if left_out:
        about += f" {len(left_out)} more of its budgets are left out, as runs there diverged or are stuck."
    try:
        effects.equivalent_compute(curve, curve[0][1])
    except ZooError as error:
        return [f"Equivalent compute is not known: {error}."]
    return (
        [about, Table(("arm", "training FLOPs", "equivalent", "from", "to"), rows)] if rows else []
    )


def _times(curve: Sequence[tuple[float, float]], loss: float, spent: float) -> str:
    try:
        return f"× {effects.equivalent_compute(curve, loss) / spent:.2f}"
    except ZooError:
        losses = [point[1] for point in curve]
        end = (max if loss < min(losses) else min)(compute for compute, _ in curve)
        return f"{'more' if loss < min(losses) else 'less'} than × {end / spent:.2f}"


def _words(results: Results, arm: str) -> frozenset[str] | None:
    """What makes an arm what it is, but for its budget."""
    run = next((run for run in results.of(arm) if run.summary), None)
    return (
        frozenset(word for word in run.words if word.split("=", 1)[0] not in BUDGET)
        if run
        else None
    )


def divergence(results: Results, compared: Comparison | None) -> Section | None:
    """How runs ended that learned nothing; only where some did."""
    p, rows = (
        {effect.arm: effect.divergence_p for effect in compared.effects} if compared else {},
        [],
    )
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
        "Diverged and stuck runs are outcomes, none is dropped; failed ones ended by an error and count nowhere. Arms that"
        " are not here had none. p is of Fisher's exact test of the share that diverged or is stuck against the baseline's,"
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
    """The loss at each position of a block: the mean over an arm's seeds, where none of them diverged."""
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
    return Section("At each position", [*told, picture, *table])


def _estimates(what: str, found: Sequence[Estimate]) -> Table:
    return Table(
        (what, "estimate", "95 % interval", "p (Holm)"),
        [[one.name, marked(one), _ends(one), p_value(one.p_holm)] for one in found],
    )


def _ends(found: Estimate | None) -> str:
    return f"{signed(found.low)} … {signed(found.high)}" if found else "–"


def _interval(effect: Effect) -> list[str]:
    ends = [signed(end) for end in (effect.low, effect.high) if end is not None]
    difference = "–" if effect.difference is None else signed(effect.difference) + mark(effect.bad)
    return [difference, " … ".join(ends) or "–"]
