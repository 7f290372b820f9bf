"""Record measurements: as JSON, as the tables of benchmarks/README.md, and as a plot."""

from __future__ import annotations

import json
import multiprocessing
import platform
import statistics
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.table import Table

from benchmarks.suites import SUITES

PACKAGES = ("transformer-zoo", "torch", "lightning", "transformers", "x-transformers", "litgpt")
README = Path(__file__).with_name("README.md")
RESULTS = Path(__file__).with_name("recorded") / "results.json"
MARKS = ("<!-- recorded by benchmarks.run -->", "<!-- to here -->")
HEADINGS = ("suite", "shape", "measure", "candidate", "median", "ratio", "spread")
NAMES = HEADINGS[:4]  # the columns that say what was measured
Samples = dict[str, list[float]]  # a figure per repeat, of each candidate
Record = dict[str, Any]


def rows(suite: str, shape: str, measure: str, unit: str, samples: Samples) -> list[Record]:
    """A record for each candidate: its median, and its ratio to the floor of the same repeat."""
    floor = next(iter(samples.values()))
    records: list[Record] = []
    for name, figures in samples.items():
        ratios = [figure / base for figure, base in zip(figures, floor, strict=True)]
        records.append(
            {
                "suite": suite,
                "shape": shape,
                "measure": measure,
                "candidate": name,
                "unit": unit,
                "samples": figures,
                "median": statistics.median(figures),
                "ratio": statistics.median(ratios),
                "least": min(ratios),
                "greatest": max(ratios),
            }
        )
    return records


def machine() -> Record:
    """The machine and the packages that the figures are of."""
    described: Record = {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu(),
        "cores": multiprocessing.cpu_count(),
        "load": f"{psutil.getloadavg()[0]:.2f}",
        "threads": 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            described[package] = version(package)
        except PackageNotFoundError:
            described[package] = "not installed"
    return described | {"torch": torch.__version__}


def _cpu() -> str:
    """The name of the CPU, which Linux tells more exactly."""
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def machine_line(described: Record) -> str:
    return " · ".join(f"{key} {value}" for key, value in described.items())


def results_of(measured: dict[str, Record]) -> list[Record]:
    """The records of all suites."""
    return [record for suite in measured.values() for record in suite["results"]]


def table(records: list[Record]) -> Table:
    table = Table(
        caption="ratios to the floor within a repeat: median, least–greatest; lower is better"
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in NAMES else "right")
    for record in records:
        if record["candidate"] == "floor":
            table.add_section()
        table.add_row(*_cells(record))
    return table


def _cells(record: Record) -> list[str]:
    return [
        *(record[name] for name in NAMES),
        f"{record['median']:.4g} {record['unit']}",
        f"{record['ratio']:.3f}",
        f"{record['least']:.2f}–{record['greatest']:.2f}",
    ]


def markdown(measured: dict[str, Record]) -> str:
    """A section for each suite, with the machine that it was measured on."""
    lines: list[str] = []
    for name, suite in measured.items():
        lines += [
            f"### {name}",
            "",
            f"{suite['about']}. {machine_line(suite['machine'])}",
            "",
            f"| {' | '.join(HEADINGS[1:])} |",
            "|---|---|---|---:|---:|---:|",
        ]
        lines += [f"| {' | '.join(_cells(record)[1:])} |" for record in suite["results"]]
        lines.append("")
        for candidate, why in suite["missing"].items():
            lines += [f"{candidate}: {why}", ""]
    return "\n".join(lines).strip()


def record(measured: dict[str, Record]) -> None:
    """Replace what is recorded of these suites, and write the tables and the plot anew."""
    order = list(SUITES)

    def place(title: str) -> tuple[int, str]:
        return order.index(title.split(",")[0]), title

    before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    merged = before | measured
    merged = {title: merged[title] for title in sorted(merged, key=place)}
    RESULTS.write_text(json.dumps(merged), encoding="utf-8")
    draw(results_of(merged), RESULTS.with_suffix(".svg"))
    start, rest = README.read_text(encoding="utf-8").split(MARKS[0])
    end = rest.split(MARKS[1])[1]
    README.write_text(
        f"{start}{MARKS[0]}\n\n{markdown(merged)}\n\n{MARKS[1]}{end}", encoding="utf-8"
    )


def draw(records: list[Record], path: Path) -> None:
    """Plot the ratios as points with their spread, a row each."""
    from matplotlib.figure import Figure

    shown = [record for record in records if record["candidate"] != "floor"]
    figure = Figure(figsize=(9, 1 + 0.22 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for row, record in enumerate(shown):
        ours = record["candidate"].startswith(("zoo", "lightning"))
        colour = "tab:orange" if ours else "tab:blue"
        axes.plot([record["least"], record["greatest"]], [row, row], color=colour, alpha=0.5)
        axes.plot(record["ratio"], row, "o", color=colour)
    labels = [" ".join(record[name] for name in NAMES) for record in shown]
    axes.set_yticks(range(len(shown)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("ratio to the floor (lower is better)")
    figure.savefig(path)
