"""Start commands of Python in forks of a process that has imported the heavy libraries already.

A command spends most of its time on importing torch and what Lightning imports. A server imports
these once and forks itself for each command, which then runs as `python -m MODULE` or `python FILE`
does: with its own arguments, environment, folder, streams, session and exit status. Lightning and
this project are imported anew by each command, since they read the environment as they are
imported. So are the ranks that a command starts: they are forked from a second server, which the
command leaves behind before it begins.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEAVY = (
    "torch._dynamo",
    "torchmetrics.functional",
    "torchdata.stateful_dataloader",
    "transformers",
    "hydra",
    "wandb",
    "fsspec.implementations.local",
    "pyarrow.parquet",
    "rich.progress",
    "schedulefree",
)
READ_BY_PYTHON = ("PYTHON", "LC_", "LANG", "OMP_", "MKL_", "TORCH")  # before a command's first line
Real = subprocess.Popen


def possible(line: Any, options: dict[str, Any]) -> bool:
    """Whether a command can be started in a fork, and would not be told apart from a new
    process.
    """
    known = {"cwd", "env", "stdin", "stdout", "stderr", "text", "start_new_session"}
    environment = options.get("env") or os.environ
    return (
        hasattr(os, "pidfd_open")
        and isinstance(line, Sequence)
        and not isinstance(line, str)
        and line[0] == sys.executable
        and len(line) > 1
        and (line[1] == "-m" or line[1].endswith(".py"))
        and options.keys() <= known
        and _early(environment) == _early(os.environ)
    )


def _early(environment: Any) -> dict[str, str]:
    return {name: environment[name] for name in environment if name.startswith(READ_BY_PYTHON)}


class Warm:
    """A command that runs in a fork of the server; behaves as `subprocess.Popen` does."""

    def __init__(
        self,
        requests: socket.socket,
        line: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Any = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        text: bool = False,
        start_new_session: bool = False,
    ) -> None:
        self.args, self.returncode = line, None
        self.stdin, self.stdout, self.stderr = None, None, None
        opened: list[int] = []

        def stream(name: str, given: Any) -> int:
            if given is None:
                return {"stdin": 0, "stdout": 1, "stderr": 2}[name]
            if given == subprocess.DEVNULL:
                opened.append(os.open(os.devnull, os.O_RDWR))
                return opened[-1]
            if given == subprocess.PIPE:
                reading, writing = os.pipe()
                opened.append(writing)
                setattr(self, name, os.fdopen(reading, "r" if text else "rb"))
                return writing
            return given if isinstance(given, int) else given.fileno()

        out = stream("stdout", stdout)
        err = out if stderr == subprocess.STDOUT else stream("stderr", stderr)
        request = os.memfd_create("request")
        self._ended, status = os.pipe()
        opened += [request, status]
        told = {
            "line": list(map(str, line)),
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "new_session": start_new_session,
        }
        os.pwrite(request, json.dumps(told).encode(), 0)
        socket.send_fds(requests, [b"."], [request, stream("stdin", stdin), out, err, status])
        for descriptor in opened:
            os.close(descriptor)
        self.pid = int(os.read(self._ended, 16))

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self.returncode = int(os.read(self._ended, 16) or -signal.SIGKILL)
            os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or 0)
        while self.poll() is None:
            left = None if timeout is None else deadline - time.monotonic()
            if left is not None and left < 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            select.select([self._ended], [], [], left)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        deadline = time.monotonic() + (timeout or 0)
        said: list[Any] = [None, None]

        def read(place: int, file: Any) -> None:
            said[place] = file.read()
            file.close()

        readers = [
            threading.Thread(target=read, args=(place, file), daemon=True)
            for place, file in enumerate((self.stdout, self.stderr))
            if file
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if timeout is None else max(0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if timeout is None else max(0, deadline - time.monotonic()))
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; returns in the fork, with what it is to run, and at the end with
    None.
    """
    running: dict[
        int, tuple[int, int]
    ] = {}  # by the descriptor of a process: its number, and where to tell
    while True:
        for ready in select.select([requests, *running], [], [])[0]:
            if isinstance(ready, int):
                pid, status = running.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                    os.write(status, str(code).encode())
                os.close(status)
                os.close(ready)
                continue
            sent, descriptors, *_ = socket.recv_fds(requests, 1, 5)
            if not sent:
                return None
            request, *streams, status = descriptors
            if pid := os.fork():
                os.write(status, str(pid).encode().ljust(16))
                running[os.pidfd_open(pid)] = pid, status
                for descriptor in (request, *streams):
                    os.close(descriptor)
                continue
            requests.close()
            for descriptor, (_, other) in running.items():
                os.close(descriptor)
                os.close(other)
            os.close(status)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            size = os.fstat(request).st_size
            told: dict[str, Any] = json.loads(os.pread(request, size, 0))
            os.close(request)
            return told


def run(told: dict[str, Any]) -> None:
    """Be the process that was asked for, from a fork."""
    if told["new_session"]:
        os.setsid()
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (child := os.fork()) == 0:
        if os.fork():
            os._exit(0)
        ours.close()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nowhere, number)
        os.close(nowhere)
        asked = serve(theirs)
        if asked is None:
            os._exit(0)
        run(asked)
        return
    os.waitpid(child, 0)
    theirs.close()
    take_over(ours)
    _, *words = told["line"]
    sys.orig_argv[:] = told["line"]
    if words[0] == "-m":
        sys.argv[:] = ["-m", *words[2:]]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def take_over(requests: socket.socket) -> None:
    """Let this process start its commands by a server, too."""

    class Popen(Real):  # type: ignore[type-arg]
        def __new__(cls, line: Any, *others: Any, **options: Any) -> Any:
            if cls is Popen and not others and possible(line, options):
                return Warm(requests, line, **options)
            return super().__new__(cls)

    subprocess.Popen = Popen  # type: ignore[misc]


def server() -> socket.socket:
    """Start a server; it ends when the socket that is returned is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line = [sys.executable, "-m", __name__, str(theirs.fileno())]
    nowhere = subprocess.DEVNULL
    Real(
        line,
        pass_fds=[theirs.fileno()],
        stdin=nowhere,
        stdout=nowhere,
        stderr=None,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    )
    theirs.close()
    return ours


if __name__ == "__main__":
    for name in HEAVY:
        importlib.import_module(name)
    import gc

    gc.freeze()
    told = serve(socket.socket(fileno=int(sys.argv[1])))
    if told:
        run(told)
