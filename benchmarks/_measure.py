"""Runs one job under one launcher and measures it from outside: CPU, wall time, memory, marks the job leaves.

A job lives in a folder of its own (the `/opt/ml` of its launcher). Its script reports through a named pipe, whose path
is in BENCH_MARKS: lines of `name integer`. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine
share, so a time taken in the script and one taken here can be subtracted. Linux only.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JOBS = Path(__file__).parent / "launcher_jobs"
TIMEOUT_S = 300.0

# The user's hyperparameters, and the arguments the script gets for them.
HYPERPARAMETERS = {"epochs": "3", "learning-rate": "0.01", "optimizer": '"adam"'}
ARGUMENTS = ["--epochs", "3", "--learning-rate", "0.01", "--optimizer", "adam"]


class BenchError(Exception):
    """A job did not do what the benchmark needs; the message says which and shows its output."""


@dataclass(frozen=True)
class Launcher:
    """One way to start a script: `command` is started in the job's code folder, with `environ` added."""

    name: str
    command: tuple[str, ...]
    environ: dict[str, str] = field(default_factory=dict)
    relays: bool = True
    """Whether a process of the launcher stays between the script and its caller."""


@dataclass(frozen=True)
class Finished:
    """A job that has ended. Times in nanoseconds."""

    returncode: int
    wall: int
    cpu: int
    """User and system time of the launcher and of every descendant that was waited for."""
    started: int
    ended: int
    marks: dict[str, int]


class Job:
    """A running job; use as a context manager, which removes its folder and whatever still runs.

    Args:
        launcher: what starts the script.
        script: file name in `launcher_jobs/`; it becomes the job's `code/train.py`.
        environ: variables added for this job.
        hyperparameters: `sagemaker_*` hyperparameters added for this job.
    """

    def __init__(
        self,
        launcher: Launcher,
        script: str,
        environ: dict[str, str] | None = None,
        hyperparameters: dict[str, str] | None = None,
    ) -> None:
        self.launcher = launcher
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self.stdout, self.stderr = self.folder / "stdout", self.folder / "stderr"
        self._script_pids: set[int] = set()
        base = self.folder / "ml"
        _write_tree(base, script, hyperparameters or {})
        os.mkfifo(self.folder / "marks")
        os.mkfifo(self.folder / "release")
        # Open for writing too, so that the pipe never reports an end between two writers.
        self._marks_fd = os.open(self.folder / "marks", os.O_RDWR | os.O_NONBLOCK)
        self._marks_text = b""
        env = {
            "PATH": f"{Path(launcher.command[0]).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "SAGEMAKER_BASE_DIR": str(base),
            "BENCH_MARKS": str(self.folder / "marks"),
            "BENCH_RELEASE": str(self.folder / "release"),
            **launcher.environ,
            **(environ or {}),
        }
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.started = time.monotonic_ns()
            self._process = subprocess.Popen(
                launcher.command, cwd=base / "code", env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        leftovers = {pid for pid in self._script_pids if _belongs_to(pid, self.folder)}
        if self._process.returncode is None:
            leftovers |= {self.pid, *descendants(self.pid)}
        for pid in leftovers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self._process.returncode is None:
            self._process.wait()
        os.close(self._marks_fd)
        os.close(self._pidfd)
        shutil.rmtree(self.folder, ignore_errors=True)

    def marks(self) -> dict[str, int]:
        """The marks left so far; the last one of a name counts."""
        try:
            while chunk := os.read(self._marks_fd, 65536):
                self._marks_text += chunk
        except BlockingIOError:
            pass
        complete = self._marks_text[: self._marks_text.rfind(b"\n") + 1]
        return {name: int(value) for name, value in (line.split() for line in complete.decode().splitlines())}

    def wait_for_mark(self, name: str, timeout_s: float = TIMEOUT_S) -> int | None:
        """The mark's value as soon as it is there; None once `timeout_s` has passed without it."""
        deadline = time.monotonic() + timeout_s
        while (value := self.marks().get(name)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            select.select([self._marks_fd], [], [], left)
        return value

    def script_pid(self, mark: str) -> int:
        """The pid the script left as a mark; it will not outlive this job.

        Raises:
            BenchError: the script never got there.
        """
        pid = self.wait_for_mark(mark, 30)
        if pid is None:
            raise BenchError(self.describe(f"did not reach {mark!r} in 30 s"))
        self._script_pids.add(pid)
        return pid

    def release(self) -> None:
        """Lets a script go on that waits to be released."""
        (self.folder / "release").write_text("go")

    def wait(self, timeout_s: float = TIMEOUT_S, check: bool = True) -> Finished:
        """Waits for the launcher's end.

        Raises:
            BenchError: it took longer than `timeout_s`, or (with `check`) it failed.
        """
        if not select.select([self._pidfd], [], [], timeout_s)[0]:
            raise BenchError(self.describe(f"still ran after {timeout_s:.0f} s"))
        _, status, usage = os.wait4(self.pid, 0)
        ended = time.monotonic_ns()
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if check and self._process.returncode != 0:
            raise BenchError(self.describe(f"ended with status {self._process.returncode}"))
        cpu = round((usage.ru_utime + usage.ru_stime) * 1e9)
        return Finished(self._process.returncode, ended - self.started, cpu, self.started, ended, self.marks())

    def describe(self, what: str) -> str:
        tail = self.stderr.read_bytes()[-1500:] + self.stdout.read_bytes()[-1500:]
        return f"a job under {self.launcher.name} {what}; its output ends with:\n{tail.decode(errors='replace')}"


def _write_tree(base: Path, script: str, hyperparameters: dict[str, str]) -> None:
    """The files a platform gives a one-host job. `localhost`, because the peer first resolves every host's name."""
    host = "localhost"
    files: dict[str, Any] = {
        "hyperparameters.json": {"sagemaker_program": '"train.py"', **HYPERPARAMETERS, **hyperparameters},
        "inputdataconfig.json": {"train": {"TrainingInputMode": "File"}},
        "resourceconfig.json": {
            "current_host": host,
            "hosts": [host],
            "current_instance_type": "local",
            "current_group_name": "homogeneousCluster",
            "instance_groups": [{"instance_group_name": "homogeneousCluster", "instance_type": "local", "hosts": [host]}],
            "network_interface_name": "lo",
        },
    }
    for folder in ("input/config", "input/data/train", "model", "output/data", "code"):
        (base / folder).mkdir(parents=True)
    for name, content in files.items():
        (base / "input/config" / name).write_text(json.dumps(content))
    shutil.copy(JOBS / script, base / "code/train.py")


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, as the kernel lists them now."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        return found
    return found + [below for child in found for below in descendants(child)]


def _belongs_to(pid: int, folder: Path) -> bool:
    """Whether `pid` is a process of the job in `folder`: pids are used again, environments tell."""
    try:
        return f"BENCH_MARKS={folder}/marks".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def peak_memory(pid: int) -> int:
    """Largest resident size `pid` has had since its last exec (VmHWM), in bytes; 0 once it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def run_job(launcher: Launcher, script: str, **job: Any) -> Finished:
    """One job from start to end."""
    with Job(launcher, script, **job) as running:
        return running.wait()


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Least and median: the least is the cost itself, the median what a busy machine makes of it."""
    return {"min": min(samples), "median": statistics.median(samples)}
