"""Print a plan: its arms and budgets, its time, and the differences that it can detect."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ablations.plan.forecast import LARGEST_READ, duration, time_left, validation
from ablations.plan.jobs import Plan, points
from ablations.stats import FEW_DOCUMENTS, power
from ablations.study import Study
from zoo.config import Config
from zoo.utils import tables

# The columns that a narrow terminal goes without, in this order.
SPARE = ("tokens", "FLOPs per token", "active", "parameters")


def show(plan: Plan, console: Console, notes: Sequence[str] = ()) -> None:
    """Print what is run, what that costs, and what it can detect."""
    study = plan.study
    console.print(
        Text(f"Study {study.name}", style="bold"),
        Text(study.question),
        f"[dim]{plan.folder}[/dim]",
        sep="  ",
    )
    tables.show(_arms(plan), console, SPARE)
    for line in (
        _runs(plan),
        power_sentence(study, len(plan.arms) - 1),
        validation_sentence(plan.configs[0]),
        f"{study.metric}, specification {study.hash[:16]}",
    ):
        console.print(Text(line))
    for note in notes:
        console.print(Text(note, style="yellow"))


def _arms(plan: Plan) -> Table:
    """A row per arm: what differs from the baseline, and what a run of it costs."""
    units = {"parameters": "parameters"}
    if any(cost["active"] != cost["parameters"] for cost in plan.costs):
        units["active"] = "active"
    units["FLOPs per token"] = "flops_per_token"
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("arm", "what differs", "matched"):
        table.add_column(column, overflow="fold")
    for column in (*units, "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    base = plan.costs[0]
    for arm, cost in zip(plan.arms, plan.costs, strict=True):
        differs = " ".join(arm.differs or arm.levels.values())
        numbers = [_against(cost[unit], base[unit]) for unit in units.values()]
        numbers.append(f"{cost['tokens']:,}")
        table.add_row(Text(arm.name), Text(differs), Text(arm.matched or "–"), *numbers)
    return table


def _against(value: int, base: int) -> str:
    if value == base or not base:
        return f"{value:,}"
    return f"{value:,} ({(value - base) / base:+.1%})"


def _runs(plan: Plan) -> str:
    """How many runs there are, their tokens and time, and what their budgets are matched by."""
    study = plan.study
    jobs = len(plan.jobs()) + len(plan.trials())
    runs = f"{len(plan.arms)} arms × {len(study.seeds)} seeds"
    if study.tune:
        runs += (
            f", after tuning each at {len(points(study))} points × {len(study.tune.seeds)} seeds:"
            f" {jobs} runs"
        )
    tokens = sum(cost["tokens"] for cost in plan.costs) / len(plan.costs) * jobs
    # Seconds are known afterwards only, and depend on the machine.
    unmatched = study.match in ("none", "seconds")
    budgets = "budgets not matched" if unmatched else f"budgets matched by {study.match}"
    return f"{runs}; {tokens:,.0f} tokens; {_time(plan, jobs)}; {budgets}"


def _time(plan: Plan, jobs: int) -> str:
    left, seconds, source = time_left(plan)
    if not left:
        return "all runs are done"
    time = "time unknown" if seconds is None else f"about {duration(seconds)}"
    remaining = f"{left} of {jobs} runs left, " if left < jobs else ""
    return f"{remaining}{time} ({source})"


def power_sentence(study: Study, comparisons: int) -> str:
    """The power of a study at its margin, for two correlations between paired runs."""
    if study.margin is None:
        return "No margin is stated: nothing can be called equivalent"
    if len(study.seeds) < 2:
        return "No power: one seed cannot show a difference"
    is_default = study.sd == Study.sd
    if study.metric != Study.metric and is_default:  # the default is for the loss, in its unit
        return (
            f"Power unknown: set sd, the standard deviation of {study.metric} over seeds, in"
            f" {study.measure.unit}"
        )
    seeds = len(study.seeds)
    low = power(seeds, comparisons, study.sd, 0.0, study.margin)
    high = power(seeds, comparisons, study.sd, 0.2, study.margin)
    number = "1 comparison" if comparisons == 1 else f"{comparisons} comparisons"
    origin = " (default)" if is_default else ""
    return (
        f"Power to detect a difference as large as the margin ({study.margin:g}):"
        f" {100 * low:.0f}–{100 * high:.0f} % with {number}, assuming a seed SD of"
        f" {study.sd:g}{origin} and a correlation of 0–0.2 between paired runs"
    )


def validation_sentence(config: Config) -> str:
    """How many documents a run is judged on. Raises ZooError for text that cannot be read."""
    split = validation(config["data"])
    if split is None:
        return (
            "Validation documents: not counted before the first run, as the text is larger than"
            f" {LARGEST_READ >> 20} MB"
        )
    documents = "1 document" if split.documents == 1 else f"{split.documents:,} documents"
    if split.documents >= FEW_DOCUMENTS:
        return f"Validated on {documents}"
    return (
        f"Validated on {documents}: too few to generalise from (fewer than {FEW_DOCUMENTS}); raise"
        " data.val_fraction or add data"
    )
