"""What a job uses at present, as the line of status shows it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainshed.runner.display import usage
from trainshed.runner.display.usage import Gauge
from trainshed.runner.files import layout
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job

BUSY = "import os, sys; held = bytearray(32 << 20)\nwhile os.times().user < 0.2: pass\nprint(flush=True); sys.stdin.read()"


@pytest.fixture
def run(tmp_path):
    job = Job(name="x", output=f"{tmp_path}/run", checkpoints=f"{tmp_path}/checkpoints")
    (tmp_path / "checkpoints").mkdir()
    return layout.plan(job, in_containers=False, now=0)


def gauge(run: Run, monkeypatch: pytest.MonkeyPatch, *pids: int) -> Gauge:
    monkeypatch.setattr(usage, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(usage.shutil, "which", lambda name: None)  # GPUs of this machine are nobody's here
    return Gauge(run, lambda: list(pids))


def test_cpu_and_memory_of_processes_and_their_children_are_counted(run, monkeypatch):
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    shell = subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        seen = gauge(run, monkeypatch, shell.pid)
        assert shell.stdout is not None and shell.stdout.readline()
        used = usage._used_below([shell.pid])
        assert len(used) == 2 and shell.pid in used
        assert sum(seconds for seconds, _ in used.values()) >= 0.2
        assert sum(memory for _, memory in used.values()) >= 32 << 20

        assert [part.split()[0] for part in seen()] == ["mem"]
        assert [part.split()[0] for part in seen()] == ["cpu", "mem"]
    finally:
        shell.communicate()


def test_processes_that_have_ended_are_passed_over(run, monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert gauge(run, monkeypatch, ended.pid)() == []
    used = usage._used_below([ended.pid, os.getpid()])
    assert os.getpid() in used and ended.pid not in used


def test_the_newest_checkpoint_and_its_age_are_named(run, monkeypatch):
    os.mkdir(f"{run.checkpoints}/step-20")
    os.utime(f"{run.checkpoints}/step-20", (0, 0))
    os.mkdir(f"{run.checkpoints}/step-40")

    (part,) = gauge(run, monkeypatch)()
    assert part.startswith("checkpoint step-40 ") and part.endswith(" ago")
