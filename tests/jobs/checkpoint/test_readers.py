"""Processes that read data for a rank end with it, and not before."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.checkpoint.loops import names
from support.paths import TOOLKIT
from trainshed.checkpoint import leave_stopping_to_the_rank

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_signal_to_all_processes_stops_at_a_step_though_others_read_the_data(start: str, tmp_path: Path) -> None:
    words = [sys.executable, str(Path(__file__).with_name("reading_loop.py")), str(tmp_path), start]
    variables = {**os.environ, "PYTHONPATH": str(TOOLKIT)}
    with subprocess.Popen(words, env=variables, text=True, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            steps = [process.stdout.readline()]
            os.killpg(process.pid, signal.SIGTERM)
            steps += process.stdout
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0
    assert names(tmp_path) == [f"step-{len(steps):012d}"]


def waits_for_it(pid: int, number: int) -> bool:
    """Whether a signal has been sent to a process, and not been taken (proc(5), ShdPnd)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("ShdPnd:")[2].split()[0], 16) >> (number - 1) & 1)


def test_a_process_that_reads_data_ends_at_a_sigterm_of_its_rank_alone() -> None:
    ready, tell = os.pipe()
    reader = os.fork()
    if reader == 0:
        leave_stopping_to_the_rank()(0)
        os.write(tell, b".")
        time.sleep(600)
        os._exit(1)
    try:
        os.read(ready, 1)
        subprocess.run(["kill", "-TERM", str(reader)], check=True)
        while waits_for_it(reader, signal.SIGTERM):  # two that wait would be one
            time.sleep(0.01)
        time.sleep(0.3)
        assert os.waitpid(reader, os.WNOHANG) == (0, 0)
        os.kill(reader, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == 0
    finally:
        os.close(ready)
        os.close(tell)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(reader, signal.SIGKILL)
            os.waitpid(reader, 0)
