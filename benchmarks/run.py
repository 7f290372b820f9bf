"""Measure a suite: time and peak memory of each candidate, as ratios to the floor.

    python -m benchmarks.run --suite gpt --shape small
    python -m benchmarks.run --suite all --record     # every suite; into benchmarks/README.md

Times are CPU time of one thread. Each candidate has a process of its own, and they take turns
(A B A B ...), so that other load on the machine falls on all of them. A ratio is taken within each
repeat; the table gives the median, least and greatest of them. Memory is the high-water mark of the
resident set over steps, above that of a process which has run the candidate at a tiny shape. In
these processes freed memory returns to the system at once (Linux with glibc only).
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks import records
from benchmarks.candidates import TRAINING
from benchmarks.records import Record, Samples
from benchmarks.shapes import Shape
from benchmarks.suites import SUITES, Suite
from benchmarks.work import SPAWN, WARM_UP, Worker, can_measure_memory, peak_mib

LEAST = 0.5  # minimal CPU seconds of each candidate in a repeat
ROUNDS = 20  # of turns in a repeat, where a step is short enough
TOLERANCE = 1e-5  # relative
MEMORY_PROCESSES = 3
Advance = Callable[[], None]  # moves a progress bar by one


def check(suite: Suite, workers: dict[str, Worker]) -> None:
    """Raises ValueError where a candidate with the floor's weights returned other values."""
    expected = next(iter(workers.values())).values
    for name in suite.same_weights:
        for ours, floor in zip(workers[name].values, expected, strict=True):
            off = abs(ours - floor).max() / abs(floor).max()
            if not off <= TOLERANCE:
                raise ValueError(f"{name} differs from the floor by {off:.1e} of its largest value")


def timed(
    name: str,
    measure: str,
    shape: Shape,
    repeats: int,
    compiled: bool,
    advance: Advance,
    missing: dict[str, str],
) -> Samples:
    """CPU milliseconds per step of each candidate, a figure per repeat.

    Why a candidate cannot be measured is added to `missing`.
    """
    suite = SUITES[name]
    workers = {
        candidate: Worker(name, measure, candidate, shape, compiled)
        for candidate in suite.candidates
    }
    try:
        for candidate, worker in list(workers.items()):
            worker.ready()
            if worker.refused is not None:
                missing[candidate] = worker.refused
                workers.pop(candidate).stop()
        check(suite, workers)
        for worker in workers.values():
            if not worker.values:  # a loop of its own, which has taken no step yet
                worker.seconds(WARM_UP)
        return _take_turns(workers, repeats, advance)
    finally:
        for worker in workers.values():
            worker.stop()


def _take_turns(workers: dict[str, Worker], repeats: int, advance: Advance) -> Samples:
    """Milliseconds per step; every other round of turns goes backwards."""
    steps = _steps_per_repeat(next(iter(workers.values())))
    rounds = min(steps, ROUNDS)
    turn = math.ceil(steps / rounds)
    samples: Samples = {candidate: [] for candidate in workers}
    for repeat in range(repeats):
        spent = dict.fromkeys(workers, 0.0)
        for number in range(repeat * rounds, (repeat + 1) * rounds):
            for candidate in reversed(workers) if number % 2 else workers:
                spent[candidate] += workers[candidate].seconds(turn)
        for candidate, seconds in spent.items():
            samples[candidate].append(1e3 * seconds / (turn * rounds))
        advance()
    return samples


def _steps_per_repeat(floor: Worker) -> int:
    """As many steps as take the floor long enough to be timed."""
    steps = 1
    while (spent := floor.seconds(steps)) < LEAST:
        steps = math.ceil(steps * min(1.2 * LEAST / max(spent, 1e-4), 20))
    return steps


def peaks(name: str, measure: str, shape: Shape, timings: Samples, advance: Advance) -> Samples:
    """Peak MiB of each candidate that was timed, a figure per process."""
    samples: Samples = {candidate: [] for candidate in timings if candidate != "floor again"}
    with ProcessPoolExecutor(os.cpu_count(), SPAWN, max_tasks_per_child=1) as pool:
        for _ in range(MEMORY_PROCESSES):
            futures = {
                candidate: pool.submit(peak_mib, name, measure, candidate, shape)
                for candidate in samples
            }
            for candidate, future in futures.items():
                samples[candidate].append(future.result())
            advance()
    return samples


def measure_shape(
    name: str,
    shape_name: str,
    arguments: argparse.Namespace,
    progress: Progress,
    missing: dict[str, str],
) -> list[Record]:
    """The records of one suite at one of its shapes."""

    def bar(what: str, total: int) -> Advance:
        task = progress.add_task(f"{name} {shape_name}: {what}", total=total)
        return partial(progress.advance, task)

    suite, found = SUITES[name], list[Record]()
    shape = suite.shapes[shape_name]
    for measure in suite.measures:
        advance = bar(measure, arguments.repeats)
        samples = timed(
            name, measure, shape, arguments.repeats, arguments.compiled, advance, missing
        )
        found += records.rows(name, shape_name, measure, "ms", samples)
    has_memory = suite.memory and TRAINING in suite.measures and not arguments.compiled
    if has_memory and can_measure_memory():
        advance = bar("peak memory", MEMORY_PROCESSES)
        samples = peaks(name, TRAINING, shape, samples, advance)
        found += records.rows(name, shape_name, "peak memory", "MiB", samples)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.run",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = parser.add_argument
    names = sorted({name for suite in SUITES.values() for name in suite.shapes})
    add("--suite", choices=[*SUITES, "all"], default="gpt", help="what to measure (default: gpt)")
    add("--shape", choices=names, help="its size (default: each in turn)")
    add("--repeats", type=int, default=9, help="figures per candidate (default: 9)")
    add("--compiled", action="store_true", help="use torch.compile (a minute per candidate)")
    add("--json", type=Path, metavar="FILE", help="write every sample, the versions and the CPU")
    add("--plot", type=Path, metavar="FILE", help="draw the ratios (.svg or .png)")
    add("--record", action="store_true", help="write the tables and the plot of the README")
    arguments = parser.parse_args()
    arguments.suites = [name for name in SUITES if arguments.suite in (name, "all")]
    if arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    if not any(_shapes(SUITES[name], arguments.shape) for name in arguments.suites):
        parser.error(f"--shape: suite {arguments.suite} has no shape {arguments.shape!r}")
    return arguments


def _shapes(suite: Suite, chosen: str | None) -> dict[str, Shape]:
    return {name: shape for name, shape in suite.shapes.items() if chosen in (None, name)}


def main() -> None:
    arguments = _arguments()
    console, measured = Console(), dict[str, Record]()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for name in arguments.suites:
            compiled = "compiled" if arguments.compiled else None
            title = ", ".join(filter(None, [name, arguments.shape, compiled]))
            shapes = _shapes(SUITES[name], arguments.shape)
            missing: dict[str, str] = {}
            measured[title] = {
                "about": SUITES[name].about,
                "machine": records.machine(),
                "missing": missing,
                "results": [],
                "shapes": {shape_name: asdict(shape) for shape_name, shape in shapes.items()},
            }
            for shape_name in shapes:
                measured[title]["results"] += measure_shape(
                    name, shape_name, arguments, progress, missing
                )
            if arguments.record:
                records.record(measured)
    results = records.results_of(measured)
    console.print(records.table(results))
    for suite in measured.values():
        for candidate, why in suite["missing"].items():
            console.print(f"{candidate}: {why}", highlight=False)
    first = next(iter(measured.values()))
    console.print(records.machine_line(first["machine"]), highlight=False)
    if arguments.json:
        arguments.json.write_text(json.dumps(measured), encoding="utf-8")
    if arguments.plot:
        records.draw(results, arguments.plot)


if __name__ == "__main__":
    main()
