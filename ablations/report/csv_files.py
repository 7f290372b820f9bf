"""Rows of comparison.csv and runs.csv, for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from ablations.outcomes import Outcome
from ablations.report.arms import first_known
from ablations.results import Results, Run, budgets
from ablations.stats import Comparison
from zoo.errors import command
from zoo.metrics import unigram_nats

COMPARISON = (
    "arm",
    "n",
    "mean",
    "difference",
    "low",
    "high",
    "p",
    "p_holm",
    "verdict",
    "parameters",
    "flops",
    "equivalence_p",
    "percent",
    "needed",
    "diverged",
    "missing",
    "documents",
    "documents_low",
    "documents_high",
    "baseline_diverged",
    "note",
    "budget",
)


RUNS = (
    "arm",
    "seed",
    "status",
    "value",
    "counts_as",
    "parameters",
    "flops_per_token",
    "tokens",
    "seconds",
    "tokens_per_second",
    "peak_memory_bytes",
    "unigram_nats",
    "fingerprint",
    "git_sha",
    "folder",
    "command",
)


def comparison_rows(results: Results, compared: Comparison | None) -> Iterable[Sequence[Any]]:
    effects = {effect.arm: effect for effect in compared.effects} if compared else {}
    table, there = results.table, len(results.table.bad.get(results.baseline, ()))
    for arm in results.arms:
        runs, mean, bad = results.of(arm), table.mean(arm), len(table.bad[arm])
        sizes = [first_known(runs, key) for key in ("parameters", "flops_per_token")]
        note = table.note if bad or there else None
        if effect := effects.get(arm):
            yield (
                arm,
                effect.n,
                mean,
                effect.difference,
                effect.low,
                effect.high,
                effect.p,
                effect.p_holm,
                effect.verdict,
                *sizes,
                effect.equivalence_p,
                effect.percent,
                effect.needed,
                bad,
                effect.missing,
                effect.documents,
                effect.documents_low,
                effect.documents_high,
                there,
                note,
                budgets.remark(results, arm),
            )
        else:
            ended = sum(run.ended for run in results.outcomes() if run.arm == arm)
            verdict = "baseline" if compared is not None and arm == results.baseline else None
            yield (
                arm,
                ended,
                mean,
                *[None] * 5,
                verdict,
                *sizes,
                *[None] * 3,
                bad,
                len(runs) - ended,
                *[None] * 3,
                there,
                note,
                None,
            )


def run_row(run: Run, outcome: Outcome, metric: str) -> Sequence[Any]:
    told = [run.summary.get(key) for key in RUNS[5:11]]
    told += [
        unigram_nats(run.summary),
        (run.summary.get("data") or {}).get("fingerprint"),
        run.summary.get("git_sha"),
    ]
    counts_as = outcome.value if outcome.ended else None
    return (
        run.arm,
        run.seed,
        outcome.status,
        run.value(metric),
        counts_as,
        *told,
        run.folder,
        run_command(run),
    )


def run_command(run: Run) -> str:
    return command("zoo.train", *run.overrides)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    return file.getvalue()
