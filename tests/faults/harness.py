"""Runs `train` as a process on a job folder and gathers everything that can be said about its end.

A `Case` is one row of the failure table: what the job is, what is done to it, and how it has to end. What holds for
every row whatever it is (`check_invariants`) is asserted in one place.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.docker_cli import Job
from support.paths import TOOLKIT

MARK = "FAULTS_SESSION"  # in the environment of everything that a case starts: what carries it afterwards was left behind
LIMIT = 300.0  # seconds; nothing here takes a tenth of it, but a hang must not hang the tests
SHOWN = 1024  # bytes of the failure file that the platform shows


@dataclass(frozen=True)
class Case:
    """One row of the failure table.

    name: what happens, in a few words.
    code: train.py of the job; `files` are further files below the job folder, by path.
    status: the exit status that `train` must end with.
    says: what the first 1,024 bytes of the failure file must hold.
    unsaid: what must not be in them.
    secrets: what must not appear anywhere: not on the console, not in the failure file, not in the run record.
    stopped: the script ended well after a stop signal: neither success nor failure.
    prepare: changes the job folder before the run. act: does something to the running process.
    then: further checks of the end.
    console: `read` by us; `one-pipe`: stdout and stderr are one pipe; `unread`; `unread-terminal`; `first-line`: the
        reader leaves after one line; `closed`: there is no stdout and stderr at all.
    docker: `docker run` options; the case runs in a container of the base image, where `train` is PID 1.
    wrapped: in the container, a shell runs `train` and copies output/ to the job folder, because it lies in a tmpfs.
    reportable: False where nothing can be written, so that there is no failure file.
    """

    name: str
    status: int
    says: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    code: str = ""
    files: Mapping[str, str | bytes | dict[str, object]] = field(default_factory=dict)
    hyperparameters: Mapping[str, object] = field(default_factory=dict)
    ranks: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    stopped: bool = False
    prepare: Callable[[Job], None] | None = None
    act: Callable[[Any], None] | None = None
    then: Callable[[Ended], None] | None = None
    console: str = "read"
    docker: tuple[str, ...] | None = None
    wrapped: bool = False
    reportable: bool = True

    def make(self, folder: Path) -> Job:
        """The job folder."""
        folder.mkdir(parents=True, exist_ok=True)
        job = Job(folder)
        hyperparameters = dict(self.hyperparameters)
        if self.ranks:
            hyperparameters |= {"trainshed_distribution": "torchrun", "trainshed_processes_per_host": self.ranks}
        if hyperparameters:
            job.configure(hyperparameters)
        if self.code:
            job.write({"code/train.py": self.code})
        job.write(dict(self.files))
        if self.prepare:
            self.prepare(job)
        return job


@dataclass(frozen=True)
class Ended:
    """How a run of `train` ended. failure and success: None where there is no such file."""

    status: int
    stdout: bytes
    stderr: bytes
    seconds: float
    job: Job
    failure: bytes | None
    success: bytes | None
    left: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The part of the failure file that the platform shows."""
        return (self.failure or b"")[:SHOWN].decode("utf-8", "replace")

    @property
    def record(self) -> dict[str, Any]:
        """The run record, {} where there is none."""
        files = sorted((self.job.folder / "output/data/run").glob("*.json"))
        return json.loads(files[0].read_text()) if files else {}

    @property
    def log(self) -> bytes:
        """The log file of the only (or the first) rank."""
        files = sorted((self.job.folder / "output/data/logs").glob("*.log"))
        return files[0].read_bytes() if files else b""

    @property
    def lines(self) -> list[str]:
        """The lines on stdout; raises UnicodeDecodeError where they are no UTF-8."""
        return self.stdout.decode().splitlines()


def ended(job: Job, status: int, stdout: bytes, stderr: bytes, seconds: float, left: tuple[str, ...] = ()) -> Ended:
    """The end of a run, with what it left in the job folder's output."""
    output = job.folder / "output"

    def content(name: str) -> bytes | None:
        return (output / name).read_bytes() if (output / name).is_file() else None

    return Ended(status, stdout, stderr, seconds, job, content("failure"), content("success"), left)


class Running:
    """`train`, started on a job in a session of its own with an environment that holds nothing of ours."""

    def __init__(self, job: Job, env: Mapping[str, str] | None = None, console: str = "read") -> None:
        self.job, self.mark = job, uuid.uuid4().hex
        self.out, self.err = bytearray(), bytearray()
        self._news = threading.Condition()
        self._readers: list[threading.Thread] = []
        self._unread: list[int] = []
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(job.folder),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(TOOLKIT),
            "SAGEMAKER_BASE_DIR": str(job.folder),
            MARK: self.mark,
            **(env or {}),
        }
        command = [sys.executable, "-m", "trainshed.container.main"]
        if console == "closed":
            command = ["/bin/sh", "-c", 'exec "$0" "$@" >&- 2>&-', *command]
        out_read, out_write = os.openpty() if console == "unread-terminal" else os.pipe()
        err_read, err_write = os.pipe() if console not in ("one-pipe", "unread-terminal") else (-1, out_write)
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out_write, stderr=err_write, start_new_session=True
        )
        for fd in {out_write, err_write}:
            os.close(fd)
        if console.startswith("unread"):
            self._unread = [fd for fd in (out_read, err_read) if fd >= 0]
        else:
            self._read(out_read, self.out, lines=1 if console == "first-line" else None)
            if err_read >= 0:
                self._read(err_read, self.err)

    @property
    def pid(self) -> int:
        """Of `train` itself."""
        return self.process.pid

    def _read(self, fd: int, into: bytearray, lines: int | None = None) -> None:
        def collect() -> None:
            while lines is None or into.count(b"\n") < lines:
                block = os.read(fd, 1 << 16 if lines is None else 1)
                if not block:
                    break
                with self._news:
                    into.extend(block)
                    self._news.notify_all()
            os.close(fd)

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        self._readers.append(thread)

    def wait_for(self, text: str) -> None:
        """Until `text` has been printed on one of the two streams."""
        wanted = text.encode()
        deadline = time.monotonic() + LIMIT
        with self._news:
            while not (found := wanted in self.out or wanted in self.err) and time.monotonic() < deadline:
                ended = self.process.poll() is not None and not any(thread.is_alive() for thread in self._readers)
                if ended:
                    break
                self._news.wait(0.2)
        assert found, f"never printed {text!r}, but:\n{self.out.decode(errors='replace')}{self.err.decode(errors='replace')}"

    def wait_for_file(self, name: str) -> Path:
        """Until a file exists below the job folder."""
        path = self.job.folder / name
        wait_until(path.exists, f"{name} never appeared")
        return path

    def signal(self, number: int) -> None:
        """Sends `train` a signal."""
        self.process.send_signal(number)

    def wait(self) -> Ended:
        """Its end; whatever it left running is killed, and told."""
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            status = 0
            self.process.kill()
            self.process.wait()
        seconds = time.monotonic() - self.started
        left = survivors(self.mark)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for thread in self._readers:
            thread.join(LIMIT)
        for fd in self._unread:
            os.close(fd)
        assert seconds < LIMIT, f"still running after {LIMIT:g} s:\n{self.out[-2000:]!r}\n{self.err[-2000:]!r}"
        status = 128 - status if status < 0 else status
        return ended(self.job, status, bytes(self.out), bytes(self.err), seconds, tuple(left.values()))


def wait_until(condition: Callable[[], object], otherwise: str, seconds: float = LIMIT) -> None:
    """Until `condition` holds; AssertionError with the text `otherwise` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def survivors(mark: str) -> dict[int, str]:
    """Living processes that carry the mark in their environment, with their command lines."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found[int(name)] = Path(f"/proc/{name}/cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
    return found


def run_process(case: Case, folder: Path) -> Ended:
    """Runs a case as a process of this machine."""
    running = Running(case.make(folder), case.env, case.console)
    try:
        if case.act:
            case.act(running)
    finally:
        end = running.wait()
    return end


def check(case: Case, end: Ended) -> None:
    """Asserts that a run ended as its row of the table says."""
    stderr = end.stderr[-3000:].decode(errors="replace")
    told = f"\n--- failure\n{end.shown}\n--- stdout\n{end.stdout[-1500:]!r}\n--- stderr\n{stderr}"
    assert end.status == case.status, f"exit status {end.status}, not {case.status}{told}"
    check_invariants(end, secrets=case.secrets, reportable=case.reportable)
    assert (end.success is not None) == (case.status == 0 and not case.stopped), f"success: {end.success!r}{told}"
    for text in case.says:
        assert text in end.shown, f"{text!r} is not in the first {SHOWN} bytes{told}"
    for text in case.unsaid:
        assert text not in end.shown, f"{text!r} is in the failure{told}"
    if case.then:
        case.then(end)


def check_invariants(end: Ended, secrets: tuple[str, ...] = (), reportable: bool = True) -> None:
    """What holds for every run of `train`, however it ends."""
    text = end.stderr.decode(errors="replace")
    if reportable:
        assert (end.failure is not None) == (end.status != 0), f"status {end.status}, failure {end.shown!r}\n{text}"
    assert end.failure is None or end.success is None, "failure and success together"
    assert end.success in (None, b""), "the success file holds something"
    for where, content in (("failure", (end.failure or b"").decode(errors="replace")), ("stderr", text)):
        # Not the bare name: that may be the folder of this checkout.
        assert not re.search(r"(toolkit|-packages)/trainshed/", content), f"a traceback of ours in {where}:\n{content}"
        assert "InternalError" not in content, f"an error of ours in {where}:\n{content}"
    assert not end.left, f"left running: {end.left}"
    everything = {"stdout": end.stdout, "stderr": end.stderr, "failure": end.failure or b""}
    for path in sorted((end.job.folder / "output").rglob("*")):
        if path.is_file() and path.suffix == ".json":
            everything[path.name] = path.read_bytes()
    for secret in secrets:
        for where, data in everything.items():
            assert secret.encode() not in data, f"the secret {secret} is in {where}:\n{data.decode(errors='replace')}"
    if reportable and end.record:
        state = end.record["state"]
        assert state in ("Completed", "Failed", "Stopped"), f"the run record ends in the state {state}"
        assert end.record["exit_code"] == end.status


def named(cases: list[Case], kinds: tuple[str, ...], *marks: Any) -> list[Any]:
    """The cases as pytest parameters. kinds: one case of each kind, which gets the marks; the others are the matrix's."""
    import pytest

    names = [case.name for case in cases]
    assert len(set(names)) == len(names) and {*names} >= {*kinds}, "a name of two cases, or of none"
    return [
        pytest.param(case, id=case.name.replace(" ", "-"), marks=marks if case.name in kinds else pytest.mark.matrix)
        for case in cases
    ]
