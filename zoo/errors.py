"""User errors: shown as one plain sentence, without a traceback."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from hydra.errors import CompactHydraException, HydraException
from omegaconf.errors import OmegaConfBaseException


class ZooError(CompactHydraException, ValueError):
    """User error: shown (by Hydra, too) as one plain sentence,
    without a traceback.
    """


@contextlib.contextmanager
def cli_errors() -> Iterator[None]:
    """A command line, which ends with `error: ...` where a person can mend what is wrong."""
    try:
        yield
        sys.stdout.flush()  # here a full disk can still be told
    except OmegaConfBaseException as error:
        sys.exit(f"error: {error.full_key}: {first_line(error)}")
    except HydraException as error:
        sys.exit(f"error: {first_line(error)}")
    except OSError as error:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  what was not written is not tried again
        if isinstance(error, BrokenPipeError):  # the reader has seen enough
            sys.exit(1)
        reason = error.strerror or first_line(error)
        advice = "free some" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose another"
        sys.exit(
            f"error: {reason}"
            if error.filename is None
            else f"error: {error.filename} ({reason}): {advice}"
        )


def first_line(error: BaseException) -> str:
    """What an exception says, without the pages that some say after it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def command(module: str, *overrides: str) -> str:
    """A command of this project as a person can paste it into a shell, whatever its words have
    in them.
    """
    return shlex.join(["python", "-m", module, *overrides])


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the closest known word where one is close, and all of them."""
    known = [str(k) for k in known]
    close = difflib.get_close_matches(word, known, 1, cutoff=0.5) or [
        k for k in known if sorted(k) == sorted(word)
    ]
    hint = f": did you mean {close[0]!r}?" if close else ""
    return f"{hint} (there are: {', '.join(known)})" if known else f"{hint} (there are none)"
