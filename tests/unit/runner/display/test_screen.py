"""What a person sees on a terminal, and what a log file gets."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

import pytest

from support.runner_project import LIMIT, TOOLKIT, Project
from trainshed.base.units import duration, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.42, "0.42 s"), (9.9, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (65, "1 min 05 s"),
     (3599.7, "1 h 00 min"), (7380, "2 h 03 min")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (3400, "3.4 kB"), (999_600, "1.0 MB"), (2e9, "2.0 GB"), (5e12, "5000 GB")],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


def on_a_terminal(project: Project, *arguments: str, go_on: str) -> str:
    """What `trainshed` writes to a terminal of 60 columns. Once that matches `go_on`, there is a file `go`."""
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        os.chdir(project.folder)
        environment = {**os.environ, "PYTHONPATH": TOOLKIT, "TERM": "xterm"}
        os.execve(sys.executable, [sys.executable, "-m", "trainshed.cli", *arguments], environment)
    text, end = b"", time.monotonic() + LIMIT
    try:
        os.set_blocking(fd, False)
        while time.monotonic() < end and select.select([fd], [], [], 1) is not None:
            try:
                block = os.read(fd, 65536)
            except BlockingIOError:
                continue
            except OSError:  # the other side has closed it
                break
            text += block
            if re.search(go_on, text.decode(errors="replace")):
                (project.folder / "go").touch()
    finally:
        os.close(fd)
        _, code = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(code) == 0, text
    return text.decode()


def test_a_terminal_shows_a_line_of_status_below_the_log_and_takes_it_away(project: Project) -> None:
    waits = f"while not os.path.exists({str(project.folder / 'go')!r}): time.sleep(0.01)\n"
    script = f"import os, time\nprint('metric loss=0.5 step=1', flush=True)\n{waits}print('end', flush=True)\n"
    project.write({"train.py": script})
    text = on_a_terminal(project, "run", "train.py", go_on="training · [0-9.]+ s · step 1 · loss 0.5")
    screen: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        screen.append(line.rpartition("\r\x1b[2K")[2])
    assert "metric loss=0.5 step=1" in screen
    assert "end" in screen
    assert not [line for line in screen if line.startswith("training · ")], "the status is gone from every finished line"


def test_without_a_terminal_nothing_is_ever_redrawn(project: Project) -> None:
    project.write({"train.py": "import time\nprint('a', flush=True)\ntime.sleep(1.2)\nprint('b')\n"})
    done = project.trainshed("run", "train.py")
    assert done.stdout == "a\nb\n"
    assert "\r" not in done.output
    assert "\x1b" not in done.output
