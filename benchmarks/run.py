"""Measure a suite: time and peak memory of each candidate, as ratios to the floor.

    python -m benchmarks.run --suite gpt --shape small
    python -m benchmarks.run --suite all --record          # every suite; rewrites the table in benchmarks/README.md

Times are CPU time of one thread. Each candidate has a process of its own, and they take turns (A B A B ...), so that what
else the machine does falls on all of them; a ratio is taken within each repeat, and the table gives the median, least and
greatest of them. Memory is the high-water mark of the resident set over steps, above what a process holds that has run the
candidate at a tiny shape; in these processes what is freed goes back to the system at once (Linux with glibc only).
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.suites import SUITES, TRAINING, Shape, Suite
from benchmarks.work import SPAWN, Worker, can_measure_memory, peak_mib

LEAST = 0.5  # CPU seconds that a repeat gives each candidate, at least
ROUNDS = 20  # of turns in a repeat, where a step is short enough
TOLERANCE = 1e-5  # relative
MEMORY_PROCESSES = 3
PACKAGES = ("transformer-zoo", "torch", "lightning", "transformers", "x-transformers", "litgpt")
README = Path(__file__).with_name("README.md")
MARKS = ("<!-- recorded by benchmarks.run -->", "<!-- to here -->")
Samples = dict[str, list[float]]  # of each candidate, a figure a repeat
Record = dict[str, Any]


def check(suite: Suite, workers: dict[str, Worker]) -> None:
    """Raises ValueError where a candidate with the floor's weights returned other values than the floor."""
    wanted = next(iter(workers.values())).values
    for name in suite.same_weights:
        for mine, floor in zip(workers[name].values, wanted, strict=True):
            off = abs(mine - floor).max() / abs(floor).max()
            if not off <= TOLERANCE:
                raise ValueError(f"{name} differs from the floor by {off:.1e} of its largest value")


def timed(name: str, measure: str, shape: Shape, repeats: int, compiled: bool, advance: Callable[[], None],
          missing: dict[str, str]) -> Samples:
    """CPU milliseconds a step of each candidate, a figure a repeat; every other round of turns goes backwards."""
    suite = SUITES[name]
    workers = {candidate: Worker(name, measure, candidate, shape, compiled) for candidate in suite.candidates}
    missing.update({candidate: worker.refused for candidate, worker in workers.items() if worker.refused})
    workers = {candidate: worker for candidate, worker in workers.items() if not worker.refused}
    try:
        check(suite, workers)
        first, times = next(iter(workers.values())), 1
        while (spent := first.seconds(times)) < LEAST:
            times = math.ceil(times * min(1.2 * LEAST / max(spent, 1e-4), 20))
        rounds = min(times, ROUNDS)
        turn = math.ceil(times / rounds)
        samples: Samples = {candidate: [] for candidate in workers}
        for repeat in range(repeats):
            spent_by = dict.fromkeys(workers, 0.0)
            for turns in range(rounds):
                for candidate in list(workers)[:: -1 if (repeat * rounds + turns) % 2 else 1]:
                    spent_by[candidate] += workers[candidate].seconds(turn)
            for candidate, seconds in spent_by.items():
                samples[candidate].append(1e3 * seconds / (turn * rounds))
            advance()
    finally:
        for worker in workers.values():
            worker.stop()
    return samples


def peaks(name: str, measure: str, shape: Shape, known: Samples, advance: Callable[[], None]) -> Samples:
    samples: Samples = {candidate: [] for candidate in known if candidate != "floor again"}
    with ProcessPoolExecutor(1, SPAWN, max_tasks_per_child=1) as pool:
        for _ in range(MEMORY_PROCESSES):
            for candidate, figures in samples.items():
                figures.append(pool.submit(peak_mib, name, measure, candidate, shape).result())
            advance()
    return samples


def rows(suite: str, shape: str, measure: str, unit: str, samples: Samples) -> list[Record]:
    """A record for each candidate: its median, and the median, least and greatest ratio to the floor's same repeat."""
    floor = next(iter(samples.values()))
    records: list[Record] = []
    for name, figures in samples.items():
        ratios = [figure / base for figure, base in zip(figures, floor, strict=True)]
        record = {"suite": suite, "shape": shape, "measure": measure, "candidate": name, "unit": unit, "samples": figures}
        ratio = {"ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}
        records.append(record | {"median": statistics.median(figures)} | ratio)
    return records


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":")[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    told = {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": names[0] if names else platform.processor(),
        "cores": multiprocessing.cpu_count(),
        "load": Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else "unknown",
        "threads": 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            told[package] = version(package)
        except PackageNotFoundError:
            told[package] = "not installed"
    return told | {"torch": torch.__version__}


def table(records: list[Record]) -> Table:
    shown = Table(caption="ratios to the floor within a repeat: median, least–greatest; lower is better")
    for column, heading in enumerate(HEADINGS):
        shown.add_column(heading, justify="right" if column > 3 else "left")
    for record in records:
        if record["candidate"] == "floor":
            shown.add_section()
        shown.add_row(*cells(record))
    return shown


HEADINGS = ("suite", "shape", "measure", "candidate", "median", "ratio", "spread")


def cells(record: Record) -> list[str]:
    median, spread = f"{record['median']:.4g} {record['unit']}", f"{record['least']:.2f}–{record['greatest']:.2f}"
    return [*(record[name] for name in HEADINGS[:4]), median, f"{record['ratio']:.3f}", spread]


def markdown(records: list[Record], told: dict[str, Any], missing: dict[str, str]) -> str:
    lines = [" · ".join(f"{key} {value}" for key, value in told.items()), "", f"| {' | '.join(HEADINGS)} |",
             "|---|---|---|---|---:|---:|---:|", *(f"| {' | '.join(cells(record))} |" for record in records)]
    return "\n".join([*lines, *([""] if missing else []), *(f"{name}: {why}" for name, why in missing.items())])


def draw(records: list[Record], path: Path) -> None:
    """The ratios as points with their spreads, a row each, in groups of suite, shape and measure."""
    from matplotlib.figure import Figure

    shown = [record for record in records if record["candidate"] != "floor"]
    figure = Figure(figsize=(9, 1 + 0.22 * len(shown)), layout="constrained")
    axes = figure.subplots()
    labels = [" ".join(record[name] for name in HEADINGS[:4]) for record in shown]
    colours = ["tab:orange" if r["candidate"].startswith("zoo") or r["candidate"] == "lightning" else "tab:blue" for r in shown]
    for place, (record, colour) in enumerate(zip(shown, colours, strict=True)):
        axes.plot([record["least"], record["greatest"]], [place, place], color=colour, alpha=0.5)
        axes.plot(record["ratio"], place, "o", color=colour)
    axes.set_yticks(range(len(shown)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("ratio to the floor (lower is better)")
    figure.savefig(path)


def main() -> None:
    as_written = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.run", description=__doc__, formatter_class=as_written)
    parser.add_argument("--suite", choices=[*SUITES, "all"], default="gpt", help="what is measured (default: gpt)")
    names = sorted({name for suite in SUITES.values() for name in suite.shapes})
    parser.add_argument("--shape", choices=names, help="how large (default: each in turn)")
    parser.add_argument("--repeats", type=int, default=9, help="figures a candidate, each over many turns (default: 9)")
    parser.add_argument("--compiled", action="store_true", help="every candidate through torch.compile (a minute each)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample, the versions and the CPU's name")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios (.svg or .png)")
    parser.add_argument("--record", action="store_true", help="rewrite the recorded table, plot and JSON beside the README")
    arguments = parser.parse_args()
    chosen = {name: suite for name, suite in SUITES.items() if arguments.suite in (name, "all")}
    if arguments.repeats < 1 or not any(arguments.shape in (None, *suite.shapes) for suite in chosen.values()):
        parser.error("--repeats must be at least 1, and --shape one that the suite has")
    console, records, missing = Console(), list[Record](), dict[str, str]()
    told = machine()
    with Progress(console=Console(stderr=True), transient=True) as progress:

        def bar(description: str, total: int) -> Callable[[], None]:
            return partial(progress.advance, progress.add_task(description, total=total))

        for name, suite in chosen.items():
            for at, shape in suite.shapes.items():
                if arguments.shape not in (None, at):
                    continue
                for measure in suite.measures:
                    advance = bar(f"{name} {at}: {measure}", arguments.repeats)
                    samples = timed(name, measure, shape, arguments.repeats, arguments.compiled, advance, missing)
                    records += rows(name, at, measure, "ms", samples)
                if TRAINING in suite.measures and suite.memory and can_measure_memory() and not arguments.compiled:
                    advance = bar(f"{name} {at}: peak memory", MEMORY_PROCESSES)
                    records += rows(name, at, "peak memory", "MiB", peaks(name, TRAINING, shape, samples, advance))
    console.print(table(records))
    console.print(" · ".join(f"{key} {value}" for key, value in told.items()), highlight=False)
    for candidate, why in missing.items():
        console.print(f"{candidate}: {why}", highlight=False)
    sizes = {name: {at: asdict(shape) for at, shape in suite.shapes.items()} for name, suite in chosen.items()}
    if arguments.json or arguments.record:
        content = {"machine": told, "shapes": sizes, "missing": missing, "results": records}
        (arguments.json or README.with_name("results.json")).write_text(json.dumps(content))
    if arguments.plot or arguments.record:
        draw(records, arguments.plot or README.with_name("results.svg"))
    if arguments.record:
        before, rest = README.read_text(encoding="utf-8").split(MARKS[0])
        new = f"{MARKS[0]}\n\n{markdown(records, told, missing)}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}"
        README.write_text(before + new, encoding="utf-8")


if __name__ == "__main__":
    main()
