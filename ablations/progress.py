"""Show the progress of a study: a live table on a terminal, elsewhere a line per finished run."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ablations import outcomes
from ablations.outcomes import Outcome, shown
from ablations.plan import Job, Plan, duration
from zoo.tracking.status import DIVERGED, ENDED, FAILED, FINISHED
from zoo.utils import files, tables

# The columns that a narrow terminal goes without, in this order.
SPARE = ("time left", "± sd")


class Watch:
    """Reads the summaries of the runs from their folders, whichever process writes them."""

    def __init__(self, plan: Plan, console: Console | None = None) -> None:
        self.plan = plan
        self.console = console or tables.console(
            sys.stdout
        )  # before jobs redirect it to their logs
        self.jobs = [*plan.trials(), *plan.jobs()]
        self.ended: dict[str, dict[str, Any]] = {}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.begun = time.monotonic()
        self.before = 0  # runs that had ended when it began
        self.live = Live(
            console=self.console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Watch:
        self.look()
        self.before = len(self.ended)
        if self.console.is_terminal:
            self.live.start()
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop.set()
        self.thread.join()
        self._print(self.look())
        if self.live.is_started:
            self.live.update(self.fitted(), refresh=True)
            self.live.stop()
        else:
            tables.show(self.table(), self.console)

    def look(self) -> list[Job]:
        """The jobs that have ended since the last call."""
        fresh = []
        for job in self.jobs:
            if job.folder not in self.ended:
                summary = self._summary(job)
                if summary.get("status") in ENDED:
                    self.ended[job.folder] = summary
                    fresh.append(job)
        return fresh

    def counted(self) -> tuple[list[Outcome], outcomes.Table]:
        """How the compared runs have ended so far, and the value that each counts as."""
        measure = self.plan.study.measure
        summaries = [
            (job, self.ended[job.folder])
            for job in self.jobs
            if job.trial is None and job.folder in self.ended
        ]
        cap = outcomes.unigram_level((run for _, run in summaries), measure)
        ended = [outcomes.outcome(job.arm, job.seed, run, measure) for job, run in summaries]
        settled = outcomes.settled(ended, cap, measure.lower_is_better)
        return settled, outcomes.arranged(settled, cap)

    def fitted(self) -> Table:
        table = self.table()
        tables.fit(table, self.console, SPARE)
        return table

    def table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), caption_justify="left")
        table.add_column("arm", overflow="fold")
        for column in ("seeds", self.plan.study.metric, "± sd", "time left"):
            table.add_column(column, justify="right")
        runs, counted = self.counted()
        for arm in self.plan.arms:
            jobs = [job for job in self.jobs if job.arm == arm.name and job.trial is None]
            how = Counter(run.status for run in runs if run.arm == arm.name)
            odd = "".join(
                f", {how[status]} {status}" for status in (DIVERGED, FAILED) if how[status]
            )
            values = list(counted.values.get(arm.name, {}).values())
            left = self._left(
                sum(job.folder not in self.ended for job in self.jobs if job.arm == arm.name)
            )
            table.add_row(
                Text(arm.name),
                f"{how['finished']}/{len(jobs)}{odd}",
                shown(counted.mean(arm.name)) + counted.mark(arm.name),
                shown(statistics.stdev(values) if len(values) > 1 else None),
                left,
            )
        left = self._left(len(self.jobs) - len(self.ended))
        done = f"{len(self.ended)}/{len(self.jobs)} runs, {left} left"
        table.caption = Text("\n".join(filter(None, [done, counted.note])))
        return table

    def _watch(self) -> None:
        while not self.stop.wait(1.0):
            fresh = self.look()
            if self.live.is_started:
                self.live.update(self.fitted(), refresh=True)
            else:
                self._print(fresh)

    def _print(self, fresh: list[Job]) -> None:
        for job in fresh if not self.live.is_started else ():
            run = self.ended[job.folder]
            ended = outcomes.outcome(job.arm, job.seed, run, self.plan.study.measure)
            parts = [job.arm, f"seed {job.seed}"]
            if job.trial is not None:
                parts.append(f"trial {job.trial}")
            parts.append(ended.status)
            if ended.status == FINISHED:
                parts.append(f"{self.plan.study.metric} {shown(ended.value)}")
            elif run.get("error"):
                parts.append(str(run["error"]))
            seconds = run.get("seconds")
            if isinstance(seconds, int | float):
                parts.append(f"{seconds:.1f} s")
            left = self._left(len(self.jobs) - len(self.ended))
            parts.append(f"({len(self.ended)}/{len(self.jobs)}, {left} left)")
            self.console.print(Text("  ".join(parts)), soft_wrap=True)

    def _left(self, jobs: int) -> str:
        """The time that so many jobs take, at the pace so far."""
        done = len(self.ended) - self.before
        if not jobs:
            return "–"
        if not done:
            return "?"
        return duration((time.monotonic() - self.begun) / done * jobs)

    def _summary(self, job: Job) -> dict[str, Any]:
        return files.read_json(self.plan.folder / job.folder / "summary.json")
