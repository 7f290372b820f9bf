"""Quality against cost, and effects as equivalent compute."""

from __future__ import annotations

from collections.abc import Sequence

from ablations import stats
from ablations.report import figures
from ablations.report.html import Part, Picture, Section, Table
from ablations.results import Results
from ablations.stats import Comparison
from zoo import metrics
from zoo.errors import ZooError
from zoo.tracking.status import FINISHED

BUDGET = (
    "trainer.max_steps",
    "trainer.eval_every",
    "trainer.log_every",
    "trainer.checkpoint_every",
    "seed",
)


COSTS = (
    ("flops_per_token", "FLOPs per token"),
    ("parameters", "parameters"),
    ("seconds", "seconds of training"),
)


def cost(results: Results, compared: Comparison | None) -> Section:
    """Quality against cost, and where the baseline was run at several budgets, effects as
    compute.
    """
    picture = figures.cost(results, COSTS)
    shown: list[Part] = [Picture(picture)] if picture else ["All runs cost the same."]
    if compared is not None and results.metric == "val/loss":
        shown += compute(results, compared)
    return Section("Cost", shown)


def compute(results: Results, compared: Comparison) -> list[Part]:
    """Effects as equivalent compute, along the baseline's own runs of separate full schedules; or
    how to get that.
    """
    base, spent = _identity(results, results.baseline), dict[str, float]()
    curve, left_out = list[tuple[float, float]](), list[tuple[float, float]]()
    for arm in results.arms:
        flops, loss = _training_flops(results, arm), results.table.mean(arm)
        if flops is None or loss is None:
            continue
        spent[arm] = flops
        if _identity(results, arm) == base:
            points = left_out if compared.diverged.get(arm) else curve
            points.append((flops, loss))
    if len(curve) < 2:
        steps = (results.of(results.baseline)[0].config.get("trainer") or {}).get("max_steps")
        some = [steps, steps // 2, 2 * steps] if isinstance(steps, int) else ["N", "N/2", "2N"]
        factor = ", ".join(f"trainer.max_steps={number}" for number in some)
        return [
            "Equivalent compute is not known: it takes runs of the baseline at other budgets, each"
            " with its full schedule."
            f" Add the factor `budget: [{factor}]` to the study to get it."
        ]
    rows = []
    for effect in compared.effects:
        if (
            effect.arm not in spent
            or _identity(results, effect.arm) == base
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
        f"Equivalent compute: how much more (or less) than the arm's own training compute the"
        f" baseline needs for its"
        f" loss, read between the baseline's {len(curve)} budgets, each a full schedule of its"
        f" own, on a logarithmic scale"
        " and never beyond them. The ends are those of the effect's 95 % interval; the error of"
        " the baseline's curve"
        " is not in them."
    )
    if left_out:
        about += (
            f" {len(left_out)} more of its budgets are left out, as runs there diverged or are"
            " stuck."
        )
    try:
        stats.equivalent_compute(curve, curve[0][1])
    except ZooError as error:
        return [f"Equivalent compute is not known: {error}."]
    return (
        [about, Table(("arm", "training FLOPs", "equivalent", "from", "to"), rows)] if rows else []
    )


def _training_flops(results: Results, arm: str) -> float | None:
    """FLOPs of the training of an arm, by its first finished run."""
    run = next((run for run in results.of(arm) if run.status == FINISHED), None)
    summary = run.summary if run else {}
    per_token = metrics.number(summary.get("flops_per_token"))
    tokens = metrics.number(summary.get("tokens"))
    return None if per_token is None or tokens is None else per_token * tokens


def _times(curve: Sequence[tuple[float, float]], loss: float, spent: float) -> str:
    try:
        return f"× {stats.equivalent_compute(curve, loss) / spent:.2f}"
    except ZooError:
        losses = [point[1] for point in curve]
        end = (max if loss < min(losses) else min)(compute for compute, _ in curve)
        return f"{'more' if loss < min(losses) else 'less'} than × {end / spent:.2f}"


def _identity(results: Results, arm: str) -> frozenset[str] | None:
    """The overrides that make an arm what it is, without its budget."""
    run = next((run for run in results.of(arm) if run.summary), None)
    return (
        frozenset(word for word in run.overrides if word.split("=", 1)[0] not in BUDGET)
        if run
        else None
    )
