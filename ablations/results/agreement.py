"""Check that the losses of runs are comparable, and note in what else the runs differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from ablations.results import untrusted
from ablations.results.runs import Results, Run
from zoo.errors import ZooError
from zoo.tracking.status import MISSING, SETTLED
from zoo.utils.files import read_json

# Fields of the summary that may differ, which is noted.
NOTED = {"git_sha": "version of the code", "versions": "packages", "host": "machine"}


def remarks(results: Results) -> list[str]:
    """In what the runs differ. Raises ZooError for what makes their losses incomparable."""
    read = [run for run in results.runs if run.summary]
    for name, value_of in MUST_AGREE.items():
        _check_same(read, name, value_of)
    return [*_differences(read), *_unread_fields(results), *_unsettled(results.runs)]


def _data(run: Run) -> str | None:
    return (run.summary.get("data") or {}).get("fingerprint")


def _tokenizer(run: Run) -> str | None:
    return repr(run.config["tokenizer"]) if "tokenizer" in run.config else None


def _loss_over(run: Run) -> str | None:
    return str(run.summary["over"] or "the whole text") if "over" in run.summary else None


# What must be the same in all runs that recorded it.
MUST_AGREE: dict[str, Callable[[Run], str | None]] = {
    "the data's fingerprint": _data,
    "the tokenizer": _tokenizer,
    "what their loss is over": _loss_over,
}


def _check_same(runs: list[Run], name: str, value_of: Callable[[Run], str | None]) -> None:
    arms: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        value = value_of(run)
        if value is not None:
            arms[value].add(run.arm)
    if len(arms) > 1:
        groups = "; ".join(", ".join(sorted(group)[:3]) for group in arms.values())
        raise ZooError(f"the runs differ in {name} ({groups}): their losses are not comparable")


def _differences(runs: list[Run]) -> Iterator[str]:
    for key, name in NOTED.items():
        values = {repr(run.summary[key]) for run in runs if run.summary.get(key) is not None}
        if len(values) > 1:
            yield f"The runs differ in the {name}: {len(values)} are recorded."


def _unread_fields(results: Results) -> Iterator[str]:
    """The fields of summaries that were left out, as they have another type than a run writes."""
    unread = []
    for run in results.runs:
        names = list(untrusted.misshapen(read_json(run.folder / "summary.json")))
        if names:
            unread.append(f"{run.folder.relative_to(results.folder)}: {', '.join(names)}")
    if unread:
        more = f"; and {len(unread) - 3} more" if len(unread) > 3 else ""
        yield f"Not read, because the type is not what a run writes: {'; '.join(unread[:3])}{more}."


def _unsettled(runs: list[Run]) -> Iterator[str]:
    for status, number in Counter(run.status for run in runs).items():
        if status not in SETTLED:
            state = "no readable summary" if status == MISSING else status
            yield f"{number} of {len(runs)} runs: {state}; not included in the results."
