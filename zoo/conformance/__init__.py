"""What every member of a group must do, as checks that run on one member, from inside or outside
this repository.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zoo.conformance import decoder_parts, text_parts, tiny, training_parts
from zoo.conformance.tiny import Case
from zoo.errors import ZooError, first_line

Check = Callable[[Case], None]  # raises AssertionError or ZooError
CHECKS: dict[str, tuple[Check, ...]] = {
    **dict.fromkeys(tiny.BASE, decoder_parts.CHECKS),
    "optim": training_parts.OPTIMISER_CHECKS,
    "schedule": training_parts.SCHEDULE_CHECKS,
    "objective": training_parts.OBJECTIVE_CHECKS,
    "tokenizer": text_parts.TOKENIZER_CHECKS,
    "data": text_parts.SOURCE_CHECKS,
}


@dataclass(frozen=True)
class Result:
    """Of one check: what it asks for, and what was found instead (None where it holds)."""

    name: str
    asks: str
    found: str | None


def conform(group: str, choice: tiny.Choice) -> Iterator[Result]:
    """Run the checks of a group on one member. Raises ZooError for a group without checks."""
    if group not in CHECKS:
        raise ZooError(
            f"there are no checks for {group}; there are for {', '.join(sorted(CHECKS))}"
        )
    for check in CHECKS[group]:
        yield Result(
            check.__name__, (check.__doc__ or "").strip(), _failure(check, (group, choice))
        )


def _failure(check: Check, case: Case) -> str | None:
    try:
        check(case)
    except (AssertionError, ZooError) as error:
        return " ".join(str(error).split("\n\n")[0].split()) or "it does not hold"
    except Exception as error:  # whatever the member does, the other checks are still run
        return f"{type(error).__name__}: {first_line(error)}"
    return None
