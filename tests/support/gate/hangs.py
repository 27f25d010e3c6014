"""A test that reaches its limit fails, with the stacks of all threads of its process and of Python processes below it."""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

# A process that does not even fail by then, since it is stuck outside of Python, is ended.
GRACE = 120
FOLDER = "build/hangs"  # below the root of the tests


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """pytest-timeout's own timer shows the stacks of one process, and a worker's terminal shows nobody."""

    def hang(number: int, frame: object) -> None:
        __tracebackhide__ = True
        pytest.fail(f"hangs: still running after its limit of {settings.timeout:g} s\n{stacks()}")

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.cancel_dump_traceback_later()
        stuck.close()
        path.unlink(missing_ok=True)

    path = item.config.rootpath / FOLDER / f"{os.getpid()}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    stuck = path.open("w")
    print(item.nodeid, file=stuck, flush=True)
    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    faulthandler.dump_traceback_later(settings.timeout + GRACE, exit=True, file=stuck)
    return True


def left(config: pytest.Config) -> list[str]:
    """What processes left that were ended in a test: its name, and their stacks. Told once."""
    found = []
    for path in sorted((config.rootpath / FOLDER).glob("*.txt")):
        if not psutil.pid_exists(int(path.stem)):
            found.append(f"ended while it was stuck in {path.read_text()}")
            path.unlink()
    return found


def stacks() -> str:
    """Of this process's threads and of the processes below it; those that are not Python's have their command alone."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        found = [file.read()]
    for process in psutil.Process().children(recursive=True):
        try:
            found.append(
                f"--- {process.pid} {process.status()} {' '.join(process.cmdline())[:300]}\n{_stack_of(process.pid)}"
            )
        except psutil.Error:
            continue  # it has ended meanwhile
    return "\n".join(found)


def _stack_of(pid: int) -> str:
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        return ""
    try:
        return subprocess.run(
            [spy, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, text=True, timeout=10
        ).stdout
    except subprocess.TimeoutExpired:
        return ""
