"""Measure a suite: time and peak memory of each candidate, as ratios to the floor.

    python -m benchmarks.run --suite gpt --shape small

Times are CPU time of one thread. The candidates take turns (A B A B ...) in one process, so that what else the machine
does falls on all of them; a ratio is taken within each repeat, and the table gives the median, least and greatest of
them. Memory is the high-water mark of the resident set over steps, above what a process holds that has run the
candidate at a tiny shape; each figure comes from a process of its own, in which what is freed goes back to the system
at once (Linux with glibc only).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
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
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.suites import SUITES, Shape, Step, Suite

LEAST = 0.5  # CPU seconds that a repeat gives each candidate, at least
ROUNDS = 20  # of turns in a repeat, where a step is short enough
TOLERANCE = 1e-5  # relative
MEMORY_PROCESSES = 3
M_MMAP_THRESHOLD = -3  # of glibc's mallopt
Samples = dict[str, list[float]]  # of each candidate, a figure a repeat


def check(suite: Suite, steps: dict[str, Step], warm_up: int = 3) -> None:
    """Run each step a few times; raises ValueError where a candidate with the floor's weights returns other values."""
    for _ in range(warm_up):
        values = {name: step() for name, step in steps.items()}
        wanted = next(iter(values.values()))
        for name in suite.same_weights:
            off = ((values[name] - wanted).abs().max() / wanted.abs().max()).item() if name in values else 0.0
            if not off <= TOLERANCE:
                raise ValueError(f"{name} differs from the floor by {off:.1e} of its largest value")


def cpu_seconds(step: Step, times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        step()
    return time.process_time() - start


def timed(suite: Suite, measure: str, shape: Shape, repeats: int, advance: Callable[[], None]) -> Samples:
    """CPU milliseconds a step of each candidate, a figure a repeat; every other round of turns goes backwards."""
    steps = {name: candidate(shape) for name, candidate in suite.measures[measure].items()}
    check(suite, steps)
    first = next(iter(steps.values()))
    times = 1
    while (spent := cpu_seconds(first, times)) < LEAST:
        times = math.ceil(times * min(1.2 * LEAST / max(spent, 1e-4), 20))
    rounds = min(times, ROUNDS)
    turn = math.ceil(times / rounds)
    samples: Samples = {name: [] for name in steps}
    for repeat in range(repeats):
        gc.collect()
        spent_by = dict.fromkeys(steps, 0.0)
        for turns in range(rounds):
            for name in list(steps)[:: -1 if (repeat * rounds + turns) % 2 else 1]:
                spent_by[name] += cpu_seconds(steps[name], turn)
        for name, seconds in spent_by.items():
            samples[name].append(1e3 * seconds / (turn * rounds))
        advance()
    return samples


def resident(field: str) -> int:
    """A figure of /proc/self/status in bytes: VmRSS is what is resident, VmHWM the most that was."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def peak_mib(suite_name: str, measure: str, name: str, shape: Shape) -> float:
    """MiB that a candidate's model, optimiser and steps add at their peak. To be called in a fresh process."""
    torch.set_num_threads(1)
    candidate = SUITES[suite_name].measures[measure][name]
    candidate(shape.tiny())()  # what is imported or made on first use is no part of the figure
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 2**16)  # large tensors have pages of their own: the figure is what is alive
    libc.malloc_trim(0)
    before = resident("VmRSS")
    step = candidate(shape)
    step()  # the optimiser makes its state
    gc.collect()
    libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # from here on VmHWM is a new high-water mark
    for _ in range(3):
        step()
    return (resident("VmHWM") - before) / 2**20


def peaks(suite_name: str, measure: str, shape: Shape, advance: Callable[[], None]) -> Samples:
    samples: Samples = {name: [] for name in SUITES[suite_name].measures[measure] if name != "floor again"}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for _ in range(MEMORY_PROCESSES):
            for name, figures in samples.items():
                figures.append(pool.submit(peak_mib, suite_name, measure, name, shape).result())
            advance()
    return samples


def row(shape: str, measure: str, unit: str, samples: Samples) -> list[dict[str, Any]]:
    """A record for each candidate: its median, and the median, least and greatest ratio to the floor's same repeat."""
    floor = next(iter(samples.values()))
    records: list[dict[str, Any]] = []
    for name, figures in samples.items():
        ratios = [figure / base for figure, base in zip(figures, floor, strict=True)]
        record = {"shape": shape, "measure": measure, "candidate": name, "unit": unit, "samples": figures}
        ratio = {"ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}
        records.append(record | {"median": statistics.median(figures)} | ratio)
    return records


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":")[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": names[0] if names else platform.processor(),
        "cores": multiprocessing.cpu_count(),
        "threads": 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformer-zoo": version("transformer-zoo"),
    }


def table(title: str, records: list[dict[str, Any]]) -> Table:
    shown = Table(title=title, caption="ratios to the floor within a repeat: median, least–greatest; lower is better")
    for column, heading in enumerate(("shape", "measure", "candidate", "median", "ratio", "spread")):
        shown.add_column(heading, justify="right" if column > 2 else "left")
    for record in records:
        if record["candidate"] == "floor":
            shown.add_section()
        median, spread = f"{record['median']:.4g} {record['unit']}", f"{record['least']:.2f}–{record['greatest']:.2f}"
        shown.add_row(record["shape"], record["measure"], record["candidate"], median, f"{record['ratio']:.3f}", spread)
    return shown


def main() -> None:
    as_written = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.run", description=__doc__, formatter_class=as_written)
    parser.add_argument("--suite", choices=SUITES, default="gpt", help="what is measured (default: gpt)")
    names = sorted({name for suite in SUITES.values() for name in suite.shapes})
    parser.add_argument("--shape", choices=names, help="how large (default: each in turn)")
    parser.add_argument("--repeats", type=int, default=9, help="figures a candidate, each over many turns (default: 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample, the versions and the CPU's name")
    arguments = parser.parse_args()
    suite = SUITES[arguments.suite]
    shapes = {name: shape for name, shape in suite.shapes.items() if arguments.shape in (None, name)}
    if not shapes or arguments.repeats < 1:
        parser.error("--repeats must be at least 1, and --shape one that the suite has")
    torch.set_num_threads(1)
    console, records = Console(), []
    with Progress(console=Console(stderr=True), transient=True) as progress:

        def bar(description: str, total: int) -> Callable[[], None]:
            return partial(progress.advance, progress.add_task(description, total=total))

        for name, shape in shapes.items():
            for measure in suite.measures:
                samples = timed(suite, measure, shape, arguments.repeats, bar(f"{name}: {measure}", arguments.repeats))
                records += row(name, measure, "ms", samples)
            if platform.libc_ver()[0] == "glibc":
                first, advance = next(iter(suite.measures)), bar(f"{name}: peak memory", MEMORY_PROCESSES)
                records += row(name, "peak memory", "MiB", peaks(arguments.suite, first, shape, advance))
    told = {"suite": arguments.suite} | machine()
    console.print(table(arguments.suite, records))
    console.print(" · ".join(f"{key} {value}" for key, value in told.items()), highlight=False)
    if arguments.json:
        sizes = {name: asdict(shape) for name, shape in shapes.items()}
        arguments.json.write_text(json.dumps({"machine": told, "shapes": sizes, "results": records}))


if __name__ == "__main__":
    main()
