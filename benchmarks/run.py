"""Measure a suite: time and peak memory of each candidate, as ratios to the floor.

    python -m benchmarks.run --suite gpt --shape small
    python -m benchmarks.run --suite all --record          # every suite; into the tables of benchmarks/README.md

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
import os
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

import psutil
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.suites import SUITES, TRAINING, Shape, Suite
from benchmarks.work import SPAWN, WARM_UP, Worker, can_measure_memory, peak_mib

LEAST = 0.5  # CPU seconds that a repeat gives each candidate, at least
ROUNDS = 20  # of turns in a repeat, where a step is short enough
TOLERANCE = 1e-5  # relative
MEMORY_PROCESSES = 3
PACKAGES = ("transformer-zoo", "torch", "lightning", "transformers", "x-transformers", "litgpt")
README, RESULTS = (Path(__file__).with_name(name) for name in ("README.md", "results.json"))
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


def timed(
    name: str,
    measure: str,
    shape: Shape,
    repeats: int,
    compiled: bool,
    advance: Callable[[], None],
    missing: dict[str, str],
) -> Samples:
    """CPU milliseconds a step of each candidate, a figure a repeat; every other round of turns goes backwards."""
    suite = SUITES[name]
    workers = {
        candidate: Worker(name, measure, candidate, shape, compiled)
        for candidate in suite.candidates
    }
    try:
        for worker in workers.values():
            worker.ready()
        missing.update(
            {candidate: worker.refused for candidate, worker in workers.items() if worker.refused}
        )
        workers = {candidate: worker for candidate, worker in workers.items() if not worker.refused}
        check(suite, workers)
        for worker in workers.values():
            if not worker.values:  # has a loop of its own, and no step behind it
                worker.seconds(WARM_UP)
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


def peaks(
    name: str, measure: str, shape: Shape, known: Samples, advance: Callable[[], None]
) -> Samples:
    samples: Samples = {candidate: [] for candidate in known if candidate != "floor again"}
    with ProcessPoolExecutor(os.cpu_count(), SPAWN, max_tasks_per_child=1) as pool:
        for _ in range(MEMORY_PROCESSES):
            asked = {
                candidate: pool.submit(peak_mib, name, measure, candidate, shape)
                for candidate in samples
            }
            for candidate, figure in asked.items():
                samples[candidate].append(figure.result())
            advance()
    return samples


def rows(suite: str, shape: str, measure: str, unit: str, samples: Samples) -> list[Record]:
    """A record for each candidate: its median, and the median, least and greatest ratio to the floor's same repeat."""
    floor = next(iter(samples.values()))
    records: list[Record] = []
    for name, figures in samples.items():
        ratios = [figure / base for figure, base in zip(figures, floor, strict=True)]
        record = {
            "suite": suite,
            "shape": shape,
            "measure": measure,
            "candidate": name,
            "unit": unit,
            "samples": figures,
        }
        ratio = {"ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}
        records.append(record | {"median": statistics.median(figures)} | ratio)
    return records


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""  # Linux
    names = [
        line.split(":")[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")
    ]
    told = {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": names[0] if names else platform.processor(),
        "cores": multiprocessing.cpu_count(),
        "load": f"{psutil.getloadavg()[0]:.2f}",
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
    shown = Table(
        caption="ratios to the floor within a repeat: median, least–greatest; lower is better"
    )
    for column, heading in enumerate(HEADINGS):
        shown.add_column(heading, justify="right" if column > 3 else "left")
    for record in records:
        if record["candidate"] == "floor":
            shown.add_section()
        shown.add_row(*cells(record))
    return shown


HEADINGS = ("suite", "shape", "measure", "candidate", "median", "ratio", "spread")


def cells(record: Record) -> list[str]:
    median, spread = (
        f"{record['median']:.4g} {record['unit']}",
        f"{record['least']:.2f}–{record['greatest']:.2f}",
    )
    return [*(record[name] for name in HEADINGS[:4]), median, f"{record['ratio']:.3f}", spread]


def markdown(measured: dict[str, Record]) -> str:
    """A section for each suite, with the machine that it was measured on."""
    lines: list[str] = []
    for name, found in measured.items():
        lines += [
            f"### {name}",
            "",
            f"{found['about']}. {told_of(found['machine'])}",
            "",
            f"| {' | '.join(HEADINGS[1:])} |",
            "|---|---|---|---:|---:|---:|",
        ]
        lines += [f"| {' | '.join(cells(record)[1:])} |" for record in found["results"]]
        lines += [
            "",
            *(
                line
                for candidate, why in found["missing"].items()
                for line in (f"{candidate}: {why}", "")
            ),
        ]
    return "\n".join(lines).strip()


def told_of(machine: dict[str, Any]) -> str:
    return " · ".join(f"{key} {value}" for key, value in machine.items())


def record(measured: dict[str, Record]) -> None:
    """Put these suites in the place of what was recorded of them beside the README, and write its tables and plot anew."""
    before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    order = list(SUITES)
    found = dict(
        sorted(
            (before | measured).items(),
            key=lambda item: (order.index(item[0].split(",")[0]), item[0]),
        )
    )
    RESULTS.write_text(json.dumps(found), encoding="utf-8")
    draw(
        [result for each in found.values() for result in each["results"]],
        RESULTS.with_suffix(".svg"),
    )
    start, rest = README.read_text(encoding="utf-8").split(MARKS[0])
    new = f"{MARKS[0]}\n\n{markdown(found)}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}"
    README.write_text(start + new, encoding="utf-8")


def draw(records: list[Record], path: Path) -> None:
    """The ratios as points with their spreads, a row each, in groups of suite, shape and measure."""
    from matplotlib.figure import Figure

    shown = [record for record in records if record["candidate"] != "floor"]
    figure = Figure(figsize=(9, 1 + 0.22 * len(shown)), layout="constrained")
    axes = figure.subplots()
    labels = [" ".join(record[name] for name in HEADINGS[:4]) for record in shown]
    colours = [
        "tab:orange"
        if r["candidate"].startswith("zoo") or r["candidate"] == "lightning"
        else "tab:blue"
        for r in shown
    ]
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
    parser = argparse.ArgumentParser(
        "python -m benchmarks.run", description=__doc__, formatter_class=as_written
    )
    parser.add_argument(
        "--suite", choices=[*SUITES, "all"], default="gpt", help="what is measured (default: gpt)"
    )
    names = sorted({name for suite in SUITES.values() for name in suite.shapes})
    parser.add_argument("--shape", choices=names, help="how large (default: each in turn)")
    parser.add_argument(
        "--repeats",
        type=int,
        default=9,
        help="figures a candidate, each over many turns (default: 9)",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="every candidate through torch.compile (a minute each)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write every sample, the versions and the CPU's name",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios (.svg or .png)")
    parser.add_argument(
        "--record",
        action="store_true",
        help="put the result into the tables and plot beside the README",
    )
    arguments = parser.parse_args()
    chosen = {name: suite for name, suite in SUITES.items() if arguments.suite in (name, "all")}
    if arguments.repeats < 1 or not any(
        arguments.shape in (None, *suite.shapes) for suite in chosen.values()
    ):
        parser.error("--repeats must be at least 1, and --shape one that the suite has")
    console, measured = Console(), dict[str, Record]()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for name, suite in chosen.items():
            title = ", ".join(
                [
                    name,
                    *filter(None, [arguments.shape]),
                    *(["compiled"] if arguments.compiled else []),
                ]
            )
            found = measured[title] = {
                "about": suite.about,
                "machine": machine(),
                "missing": dict[str, str](),
                "results": list[Record](),
                "shapes": {
                    at: asdict(shape)
                    for at, shape in suite.shapes.items()
                    if arguments.shape in (None, at)
                },
            }
            for at in found["shapes"]:
                found["results"] += measure(name, at, arguments, progress, found["missing"])
            if arguments.record:
                record(measured)
    console.print(table([result for found in measured.values() for result in found["results"]]))
    for found in measured.values():
        for candidate, why in found["missing"].items():
            console.print(f"{candidate}: {why}", highlight=False)
    console.print(told_of(next(iter(measured.values()))["machine"]), highlight=False)
    if arguments.json:
        arguments.json.write_text(json.dumps(measured), encoding="utf-8")
    if arguments.plot:
        draw([result for found in measured.values() for result in found["results"]], arguments.plot)


def measure(
    name: str, at: str, arguments: argparse.Namespace, progress: Progress, missing: dict[str, str]
) -> list[Record]:
    """The records of one suite at one of its shapes."""

    def bar(what: str, total: int) -> Callable[[], None]:
        return partial(progress.advance, progress.add_task(f"{name} {at}: {what}", total=total))

    suite, records = SUITES[name], list[Record]()
    shape = suite.shapes[at]
    for what in suite.measures:
        advance = bar(what, arguments.repeats)
        samples = timed(name, what, shape, arguments.repeats, arguments.compiled, advance, missing)
        records += rows(name, at, what, "ms", samples)
    if (
        TRAINING in suite.measures
        and suite.memory
        and can_measure_memory()
        and not arguments.compiled
    ):
        found = peaks(name, TRAINING, shape, samples, bar("peak memory", MEMORY_PROCESSES))
        records += rows(name, at, "peak memory", "MiB", found)
    return records


if __name__ == "__main__":
    main()
