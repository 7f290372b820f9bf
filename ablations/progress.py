"""A study while it runs: a table that keeps itself up to date on a terminal, a line a run elsewhere."""

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

SPARE = ("time left", "± sd")  # of the table's columns, what goes first where there is no room


class Watch:
    """Reads the summaries of a study's runs from their folders, so that it does not matter who runs them."""

    def __init__(self, plan: Plan, console: Console | None = None) -> None:
        self.plan, self.console = (
            plan,
            console or tables.console(sys.stdout),
        )  # before jobs write to their own logs
        self.jobs = [*plan.trials(), *plan.jobs()]
        self.ended: dict[str, dict[str, Any]] = {}
        self.stop, self.thread = (
            threading.Event(),
            threading.Thread(target=self._watch, daemon=True),
        )
        self.begun, self.before = time.monotonic(), 0
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
        self._tell(self.look())
        if self.live.is_started:
            self.live.update(self.fitted(), refresh=True)
            self.live.stop()
        else:
            tables.show(self.table(), self.console)

    def look(self) -> list[Job]:
        """The jobs that have ended since the last look."""
        fresh = []
        for job in self.jobs:
            if job.folder not in self.ended:
                summary = self._summary(job)
                if summary.get("status") in ENDED:
                    self.ended[job.folder] = summary
                    fresh.append(job)
        return fresh

    def counted(self) -> tuple[list[Outcome], outcomes.Table]:
        """How the runs that count have ended so far, and what each counts as."""
        measure = self.plan.study.measure
        summaries = [
            (job, self.ended[job.folder])
            for job in self.jobs
            if job.trial is None and job.folder in self.ended
        ]
        cap = outcomes.unigram_level((run for _, run in summaries), measure)
        found = [outcomes.outcome(job.arm, job.seed, run, measure) for job, run in summaries]
        found = outcomes.settled(found, cap, measure.lower_is_better)
        return found, outcomes.arranged(found, cap)

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
        done = f"{len(self.ended)}/{len(self.jobs)} runs, {self._left(len(self.jobs) - len(self.ended))} left"
        table.caption = Text("\n".join(filter(None, [done, counted.note])))
        return table

    def _watch(self) -> None:
        while not self.stop.wait(1.0):
            fresh = self.look()
            if self.live.is_started:
                self.live.update(self.fitted(), refresh=True)
            else:
                self._tell(fresh)

    def _tell(self, fresh: list[Job]) -> None:
        for job in fresh if not self.live.is_started else ():
            run = self.ended[job.folder]
            ended = outcomes.outcome(job.arm, job.seed, run, self.plan.study.measure)
            seconds, measured = run.get("seconds"), ended.status == FINISHED
            words = [
                job.arm,
                f"seed {job.seed}",
                "" if job.trial is None else f"trial {job.trial}",
                ended.status,
            ]
            words += [
                f"{self.plan.study.metric} {shown(ended.value)}"
                if measured
                else str(run.get("error") or "")
            ]
            words += [f"{seconds:.1f} s"] if isinstance(seconds, int | float) else []
            left = self._left(len(self.jobs) - len(self.ended))
            words.append(f"({len(self.ended)}/{len(self.jobs)}, {left} left)")
            self.console.print(Text("  ".join(filter(None, words))), soft_wrap=True)

    def _left(self, jobs: int) -> str:
        done = len(self.ended) - self.before
        return (
            "–"
            if not jobs
            else duration((time.monotonic() - self.begun) / done * jobs)
            if done
            else "?"
        )

    def _summary(self, job: Job) -> dict[str, Any]:
        return files.read_json(self.plan.folder / job.folder / "summary.json")
