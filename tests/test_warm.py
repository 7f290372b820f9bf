"""A command in a fork of a warm process is told apart from a fresh process by nothing but its
speed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import warm
from tests.helpers.commands import bounded, start

TELL = """
import atexit, json, os, subprocess, sys
told = {
    "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": sys.path[0], "folder": os.getcwd(),
    "name": __name__, "main": sys.modules["__main__"].__dict__ is globals(),
    "spec": __spec__ and __spec__.name, "environment": dict(os.environ),
    "leads": os.getsid(0) == os.getpid() == os.getpgrp(), "input": sys.stdin.read(),
    "buffered": sys.stdout.line_buffering, "encoding": sys.stdout.encoding,
}
print(json.dumps(told))
print("beside", file=sys.stderr)
atexit.register(print, "at the end")
if len(sys.argv) > 2:
    pieces = "import os; print('rank', os.environ['RANK'], os.getsid(0) == LEADER)"
    open("rank.py", "w").write(pieces.replace("LEADER", str(os.getsid(0))))
    sys.stdout.flush()
    rank = subprocess.Popen([sys.executable, "rank.py"], env=os.environ | {"RANK": "1"})
    print("waited", rank.wait(), rank.poll())
exec(sys.argv[1])
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tell.py").write_text(TELL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOLD", "in the environment")
    return tmp_path


@pytest.mark.parametrize(
    "ending",
    ["pass", "sys.exit(3)", "sys.exit('a sentence')", "1 / 0", "os.kill(os.getpid(), 9)"],
)
@pytest.mark.parametrize("name", [["-m", "tell"], ["tell.py"]], ids=" ".join)
@pytest.mark.usefixtures("place")
def test_it_runs_and_ends_as_a_fresh_process(name: list[str], ending: str) -> None:
    fresh, forked = (
        bounded([sys.executable, *name, ending, "and a rank"], fresh=fresh)
        for fresh in (True, False)
    )
    assert forked.returncode == fresh.returncode
    assert forked.stdout == fresh.stdout
    assert forked.stderr.splitlines()[0] == fresh.stderr.splitlines()[0] == "beside"
    assert forked.stderr.splitlines()[-1] == fresh.stderr.splitlines()[-1]
    told = json.loads(fresh.stdout.splitlines()[0]) if ending != "os.kill(os.getpid(), 9)" else {}
    assert told.get("leads", True)


@pytest.mark.usefixtures("place")
def test_a_signal_reaches_it_and_its_end_is_told() -> None:
    Path("sleep.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = start(
            [sys.executable, "sleep.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert isinstance(process, warm.Warm)
        assert process.stdout.readline() == b"begun\n"
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(20) == -number
        assert (b"KeyboardInterrupt" in process.communicate()[1]) == (number == signal.SIGINT)


@pytest.mark.usefixtures("place")
def test_one_that_hangs_is_ended_with_all_that_it_has_started() -> None:
    code = "import os, time\nopen(str(os.getpid()), 'w')\ntime.sleep(60)\n"
    Path("rank.py").write_text(code)
    Path("hang.py").write_text(
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, 'rank.py'])\n{code}"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        bounded([sys.executable, "hang.py"], seconds=2)
    numbers = [int(path.name) for path in Path().iterdir() if path.name.isdigit()]
    assert len(numbers) == 2
    for _ in range(100):
        left = [number for number in numbers if Path(f"/proc/{number}/status").exists()]
        if not left:
            break
        time.sleep(0.05)
    assert left == []


def test_it_finds_the_heavy_libraries_imported_and_the_project_not(place: Path) -> None:
    (place / "seen.py").write_text(
        "import sys\n"
        "print([name for name in ('torch', 'wandb', 'lightning', 'zoo') if name in sys.modules])\n"
    )
    assert bounded([sys.executable, "seen.py"]).stdout == "['torch', 'wandb']\n"


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ([sys.executable, "-c", "pass"], {}),
        ([sys.executable, "-u", "-m", "zoo.train"], {}),
        (["git", "status"], {}),
        (f"{sys.executable} -m zoo.train", {"shell": True}),
        ([sys.executable, "-m", "zoo.train"], {"env": {**os.environ, "PYTHONHASHSEED": "1"}}),
    ],
)
def test_what_a_fork_cannot_be_is_a_fresh_process(line: Any, options: dict[str, Any]) -> None:
    assert warm.possible([sys.executable, "-m", "zoo.train"], {})
    assert not warm.possible(line, options)
