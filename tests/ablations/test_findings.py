"""The recorded findings follow from their runs by today's code: a change of the statistics is a
change of the record.
"""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ablations.report import csv_files
from ablations.results import Results, Run, judging

FINDINGS = Path(__file__).parents[2] / "ablations" / "findings"
RECORDED = (
    "documents",
    "documents_low",
    "documents_high",
)  # of losses by document, which are no part of the record


def recorded(folder: Path) -> Results:
    """A finding's runs, from the numbers that are kept of them."""
    plan = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    runs = []
    for row in csv.DictReader((folder / "runs.csv").open(encoding="utf-8")):
        number: dict[str, Any] = {
            key: json.loads(row[key])
            for key in (
                "value",
                "unigram_nats",
                "parameters",
                "flops_per_token",
                "tokens",
                "seconds",
            )
            if row.get(key)
        }
        summary = number | {
            "status": row["status"],
            "seed": int(row["seed"]),
            "git_sha": row["git_sha"],
            "metrics": {plan["study"]["metric"]: number.pop("value")},
            "data": {"fingerprint": row["fingerprint"]},
            "overrides": shlex.split(row["command"])[3:],
        }
        runs.append(Run(row["arm"], int(row["seed"]), folder / "gone", summary))
    return Results(folder, runs, plan)


def rows(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    return {
        row["arm"]: {key: cell for key, cell in row.items() if key not in RECORDED}
        for row in csv.DictReader(lines)
    }


@pytest.mark.parametrize("name", sorted(path.parent.name for path in FINDINGS.glob("*/study.json")))
def test_a_finding_follows_from_its_runs(name: str) -> None:
    found = recorded(FINDINGS / name)
    now = rows(
        io.StringIO(
            csv_files.csv_text(
                csv_files.COMPARISON, csv_files.comparison_rows(found, judging.compare(found))
            )
        )
    )
    then = rows((FINDINGS / name / "comparison.csv").read_text(encoding="utf-8").splitlines())
    assert now.keys() == then.keys()
    told = (FINDINGS / name / "report.md").read_text(encoding="utf-8")
    for arm, row in now.items():
        for key, cell in row.items():
            try:
                assert float(then[arm][key]) == pytest.approx(float(cell), rel=1e-6), key
            except ValueError:
                assert then[arm][key] == cell, key
        line = next(line for line in told.splitlines() if line.startswith(f"| {arm} |"))
        assert f" {row['verdict']} " in line, "the report, beside it, says the same"
