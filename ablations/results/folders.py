"""The runs of a study or of a sweep, read from their folders, and what keeps them from being compared."""

from __future__ import annotations

import csv
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ablations import outcomes
from ablations.outcomes import Outcome, Table
from ablations.results import untrusted
from ablations.stats import Array
from zoo import metrics
from zoo.errors import ZooError, did_you_mean
from zoo.metrics import Metric
from zoo.tracking.status import FINISHED, MISSING, PENDING, SETTLED
from zoo.utils.files import read_json

MUST_AGREE = {
    "data": "the data's fingerprint",
    "tokenizer": "the tokenizer",
    "over": "what their loss is over",
}
READER = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # ten times as fast, where yaml was built with it
NOTED = {"git_sha": "version of the code", "versions": "packages", "host": "machine"}


@dataclass(frozen=True)
class Run:
    """One run: of an arm, with a seed. Its summary is empty where the file is missing or cannot be read."""

    arm: str
    seed: int
    folder: Path
    summary: Mapping[str, Any]

    @property
    def status(self) -> str:
        return str(self.summary.get("status") or MISSING)

    def value(self, metric: str) -> float | None:
        """What it reached, where it is a finite number."""
        return metrics.number((self.summary.get("metrics") or {}).get(metric))

    @cached_property
    def config(self) -> dict[str, Any]:
        try:
            content = yaml.load((self.folder / "config.yaml").read_text(encoding="utf-8"), READER)
        except (
            OSError,
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
            yaml.YAMLError,
        ):  # PyYAML's own, for odd dates
            return {}
        nodes = content.items() if isinstance(content, dict) else ()
        return {str(key): node for key, node in nodes if isinstance(node, dict)}

    def curve(self, metric: str) -> Array:
        """Step and value of each time that it was logged, shape (n, 2)."""
        try:
            with (self.folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
                names, *rows = csv.reader(file)
            step, at = names.index("step"), names.index(metric)
            told = [
                (metrics.number(int(row[step])), float(row[at]))
                for row in rows
                if len(row) > max(at, step) and row[at]
            ]
            found = [(number, value) for number, value in told if number is not None]
        except (OSError, ValueError, csv.Error):
            found = []
        return np.array(found, float).reshape(-1, 2)

    @property
    def by_document(self) -> Array | None:
        """Nats a token of each document of the last evaluation, NaN where it has no token; None where they are not known."""
        return self._evaluated("document")

    @property
    def by_position(self) -> Array | None:
        """Nats a token at each position of a block, NaN where there is no token."""
        return self._evaluated("position")

    def _evaluated(self, what: str) -> Array | None:
        try:
            with np.load(self.folder / "evaluation.npz", allow_pickle=False) as file:
                nats, tokens = (
                    np.asarray(file[f"{what}_{unit}"], float) for unit in ("nats", "tokens")
                )
                if nats.ndim != 1 or nats.shape != tokens.shape:
                    return None
                if not np.isfinite(
                    nats
                ).all():  # it diverged, and a mean over the rest would not be its own
                    return None
                return np.divide(nats, tokens, out=np.full(nats.shape, np.nan), where=tokens > 0)
        except (
            OSError,
            ValueError,
            KeyError,
            EOFError,
            TypeError,
            AttributeError,
            zipfile.BadZipFile,
            zlib.error,
        ):
            return None

    @property
    def words(self) -> list[str]:
        """The command line that makes this run again."""
        told = [str(word) for word in self.summary.get("overrides") or []]
        return [word for word in told if not word.startswith(("hydra.", "resume=", "logger."))]


@dataclass
class Results:
    """The runs below a folder, with the study that planned them, or None where they are a sweep that nobody planned."""

    folder: Path
    runs: list[Run]
    plan: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def study(self) -> dict[str, Any]:
        return self.plan["study"] if self.plan else {}

    @property
    def metric(self) -> str:
        return self.study.get("metric") or "val/loss"

    @property
    def measure(self) -> Metric:
        return metrics.of(self.metric)

    @cached_property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(run.arm for run in self.runs))

    @property
    def baseline(self) -> str:
        return self.plan["baseline"] if self.plan else self.arms[0]

    @property
    def levels(self) -> dict[str, dict[str, str]]:
        """Of each arm, the choice of each factor of the design."""
        return (
            {arm["name"]: arm.get("levels") or {} for arm in self.plan["arms"]} if self.plan else {}
        )

    def of(self, arm: str) -> list[Run]:
        return [run for run in self.runs if run.arm == arm]

    @property
    def cap(self) -> float | None:
        """What a run counts as that learned nothing, unless it was worse."""
        return outcomes.unigram_level((run.summary for run in self.runs), self.measure)

    @property
    def pending(self) -> int:
        """The planned runs that are still to end."""
        return sum(run.status in PENDING for run in self.runs) if self.plan else 0

    def outcomes(self) -> list[Outcome]:
        """How each run ended, in the order of the runs, with the value that it counts as."""
        found = [
            outcomes.outcome(run.arm, run.seed, run.summary, self.measure) for run in self.runs
        ]
        return outcomes.settled(found, self.cap, self.measure.lower_is_better)

    @cached_property
    def table(self) -> Table:
        """The values that the runs count as, by arm and seed."""
        return outcomes.arranged(self.outcomes(), self.cap)


def load(folder: Path) -> Results:
    """Read a study's folder, or a sweep's. Raises ZooError where there is no run, or none that has the metric."""
    plan = read_json(folder / "study.json")
    if plan or (folder / "study.json").exists():
        found = Results(folder, list(_planned(folder, plan)), plan)
    else:
        found = Results(folder, list(_swept(folder)))
        found.notes.append(
            "No study planned these runs: neither the question, the number of seeds nor a margin was fixed"
            " before them, so that what looks like a finding may be the best of many looks: a hint for a study."
        )
    if not found.runs:
        raise ZooError(
            f"no run below {folder}: give a sweep's or a study's folder, whose jobs hold a summary.json each"
        )
    finished = [run for run in found.runs if run.status == FINISHED]
    if finished and not any(found.metric in (run.summary.get("metrics") or {}) for run in finished):
        known = sorted({name for run in finished for name in run.summary.get("metrics") or {}})
        raise ZooError(f"no run has the metric {found.metric!r}{did_you_mean(found.metric, known)}")
    metrics.of(found.metric)
    found.notes += _remarks(found)
    return found


def _summary(folder: Path) -> dict[str, Any]:
    """What can be used of a run's summary; nothing where it cannot be read."""
    return untrusted.cleaned(read_json(folder / "summary.json"))


def _planned(folder: Path, plan: Mapping[str, Any]) -> Iterator[Run]:
    try:
        arms = {str(arm["name"]): str(arm.get("folder", arm["name"])) for arm in plan["arms"]}
        seeds = [int(seed) for seed in plan["study"]["seeds"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ZooError(
            f"{folder / 'study.json'} is damaged: bring it back, or move it away and run the study's command"
            " again, which writes it anew and says so"
        ) from error
    for arm, below in arms.items():
        for seed in seeds:
            place = folder / below / f"seed_{seed}"
            yield Run(arm, seed, place, _summary(place))


def _swept(folder: Path) -> Iterator[Run]:
    """A sweep's runs, each arm by the words that not all runs have in common."""
    found = [(path.parent, _summary(path.parent)) for path in folder.glob("*/summary.json")]
    found.sort(key=lambda run: (len(run[0].name), run[0].name))
    told = [[str(word) for word in summary.get("overrides") or []] for _, summary in found]
    told = [
        [word for word in words if not word.startswith(("seed=", "hydra.", "resume="))]
        for words in told
    ]
    known = [set(words) for words, (_, summary) in zip(told, found, strict=True) if summary]
    shared = set.intersection(*known) if len(set(map(tuple, told))) > 1 and known else set()
    seen: dict[str, Counter[int]] = defaultdict(Counter)
    for (place, summary), words in zip(found, told, strict=True):
        arm = " ".join(word for word in words if word not in shared) or "default"
        seed = summary.get("seed")
        seed = seed if isinstance(seed, int) else -1 - seen[arm][-1]
        seen[arm][seed] += 1
        if seen[arm][seed] > 1:
            raise ZooError(
                f"{place} repeats seed {seed} of {arm}: a run counts once, move one of them away"
            )
        yield Run(arm, seed, place, summary)


def _remarks(found: Results) -> list[str]:
    """In what the runs differ beside their words. Raises ZooError for what makes their losses incomparable."""
    ended = [run for run in found.runs if run.summary]
    told = []
    for what, name in MUST_AGREE.items():
        kinds = defaultdict(set)
        for run in ended:
            kind = {
                "data": (run.summary.get("data") or {}).get("fingerprint"),
                "tokenizer": repr(run.config["tokenizer"]) if "tokenizer" in run.config else None,
                "over": str(run.summary["over"] or "the whole text")
                if "over" in run.summary
                else None,
            }[what]
            if kind is not None:
                kinds[kind].add(run.arm)
        if len(kinds) > 1:
            groups = "; ".join(", ".join(sorted(arms)[:3]) for arms in kinds.values())
            raise ZooError(
                f"the runs differ in {name} ({groups}): their losses are of different things, not to be compared"
            )
    for what, name in NOTED.items():
        kinds_ = {repr(run.summary.get(what)) for run in ended if run.summary.get(what) is not None}
        if len(kinds_) > 1:
            told.append(f"Not all runs are of one {name}: {len(kinds_)} are seen.")
    odd = [
        f"{run.folder.relative_to(found.folder)}: {', '.join(names)}"
        for run in found.runs
        if (names := list(untrusted.misshapen(read_json(run.folder / "summary.json"))))
    ]
    if odd:
        more = f"; and {len(odd) - 3} more" if len(odd) > 3 else ""
        told.append(
            f"Not read, as it is of another kind than a run writes there: {'; '.join(odd[:3])}{more}."
        )
    states = Counter(run.status for run in found.runs)
    for state, number in states.items():
        if state not in SETTLED:
            told.append(
                f"{number} of {len(found.runs)} runs: {'no summary that can be read' if state == MISSING else state};"
                " they count nowhere."
            )
    return told
