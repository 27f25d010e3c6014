"""What all parts use: jobs of `train` in folders of their own, and rows for the table."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
TOOLKIT = HERE.parent / "toolkit"
ENTRYPOINTS = HERE.parent / "entrypoints"
JOBS = HERE / "gpu_jobs"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: what was measured or tried.
        value: the number, or what was said.
        unit: of the number.
        spread: least and greatest of the repeats, where there were any.
        goal: what it should be, "" where there is no goal.
        met: whether it is; None without a goal.
        note: how it was measured, or why it was not.
    """

    what: str
    value: float | str
    unit: str = ""
    spread: tuple[float, float] | None = None
    goal: str = ""
    met: bool | None = None
    note: str = ""


def measured(what: str, values: Sequence[float], unit: str, **more: Any) -> Row:
    """The row of some repeats: their median, and how far they spread."""
    spread = (min(values), max(values)) if len(values) > 1 else None
    return Row(what, statistics.median(values), unit, spread, **more)


def skipped(what: str, why: str) -> Row:
    """The row of what could not be tried here."""
    return Row(what, "not run", note=why)


@dataclass(frozen=True)
class Machine:
    """What the parts need to know of this machine, and how much they may do on it.

    Attributes:
        gpus: how many there are; none on a smoke run, whatever there is.
        smoke: everything small, to see that all of it works.
        work: a folder for the jobs' folders.
    """

    gpus: int
    smoke: bool
    work: Path

    def pick(self, full: Any, smoke: Any) -> Any:
        """One of two sizes."""
        return smoke if self.smoke else full

    def judged(self, what: str, value: float, unit: str, goal: str, met: bool, note: str = "") -> Row:
        """A row with a goal that counts for full sizes alone."""
        return (
            Row(what, value, unit, note="too small to be judged")
            if self.smoke
            else Row(what, value, unit, None, goal, met, note)
        )


@dataclass(frozen=True)
class Done:
    """A job that has ended.

    Attributes:
        status: exit status of `train`.
        seconds: from its start to its end.
        cpu: CPU seconds of `train` and all its processes.
        result: what the script printed after `RESULT `, a JSON object.
        failure: the failure file.
    """

    status: int
    seconds: float
    cpu: float
    output: str
    errors: str
    result: dict[str, Any]
    failure: str
    folder: Path

    def record(self) -> dict[str, Any]:
        """The run record of the first host."""
        (path,) = (self.folder / "output/data/run").iterdir()
        return dict(json.loads(path.read_text()))

    def said(self) -> str:
        """Why it failed, in a line."""
        text = self.failure.strip() or (self.errors.strip().splitlines() or ["nothing was said"])[-1]
        return text.splitlines()[0][:300]


class JobError(Exception):
    """A job did not do what its part needs."""


@dataclass
class Running:
    """A job of `train` that runs; `started` makes it."""

    process: subprocess.Popen[str]
    folder: Path
    began: float
    lines: list[str] = field(default_factory=list)
    _heard: threading.Condition = field(default_factory=threading.Condition)

    def listen(self) -> None:
        """Reads what the job prints, to its end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._heard:
                self.lines.append(line)
                self._heard.notify_all()

    def wait_for(self, text: str, seconds: float = 300) -> None:
        """Waits until a line with `text` is printed."""
        ends = time.monotonic() + seconds
        with self._heard:
            while not any(text in line for line in self.lines):
                if self.process.poll() is not None or time.monotonic() > ends:
                    raise JobError(f"the job never said {text!r}")
                self._heard.wait(0.05)

    def signal(self, number: signal.Signals) -> float:
        """Sends `train` a signal; the time at which it was sent."""
        now = time.monotonic()
        self.process.send_signal(number)
        return now

    def finish(self, seconds: float = 600) -> Done:
        """Waits for the end; a job that outlives `seconds` is killed."""
        ends = time.monotonic() + seconds
        while True:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > ends:
                os.killpg(self.process.pid, signal.SIGKILL)
                ends += 3600
            time.sleep(0.01)
        ended = time.monotonic()
        self.process.returncode = os.waitstatus_to_exitcode(status)
        time.sleep(0.1)  # the last lines are in the pipe
        errors = (self.folder / "stderr").read_text()
        output = "".join(self.lines)
        told = [line for line in self.lines if "RESULT " in line]
        failure = self.folder / "output/failure"
        return Done(
            self.process.returncode,
            ended - self.began,
            usage.ru_utime + usage.ru_stime,
            output,
            errors,
            json.loads(told[-1].partition("RESULT ")[2]) if told else {},
            failure.read_text() if failure.exists() else "",
            self.folder,
        )


@contextmanager
def started(
    machine: Machine,
    name: str,
    program: Path,
    hyperparameters: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    channels: Mapping[str, Path] | None = None,
    checkpoints: Path | None = None,
) -> Iterator[Running]:
    """Starts `train` on a job of its own, in a process group of its own that ends with the block.

    Args:
        name: of its folder; one that is there already is an error.
        program: the script, which runs where it lies.
        hyperparameters: the script's, and settings of trainshed.
        environment: variables added to this process's.
        channels: their folders.
        checkpoints: a folder that outlives the job.
    """
    folder = machine.work / name
    for path in ("input/config", "input/data", "output", "model", "tmp"):
        (folder / path).mkdir(parents=True)
    if checkpoints is not None:
        checkpoints.mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints").symlink_to(checkpoints)
    for channel, path in (channels or {}).items():
        (folder / "input/data" / channel).symlink_to(path)
    values = {"sagemaker_program": str(program), **(hyperparameters or {})}
    (folder / "input/config/hyperparameters.json").write_text(json.dumps({k: str(v) for k, v in values.items()}))
    (folder / "input/config/inputdataconfig.json").write_text(
        json.dumps({channel: {"TrainingInputMode": "File"} for channel in channels or {}})
    )
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(TOOLKIT), os.environ.get("PYTHONPATH")))),
        "SAGEMAKER_BASE_DIR": str(folder),
        "TMPDIR": str(folder / "tmp"),
        **({"CUDA_VISIBLE_DEVICES": ""} if not machine.gpus else {}),
        **(environment or {}),
    }
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainshed.container.main"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    running = Running(process, folder, time.monotonic())
    listener = threading.Thread(target=running.listen, daemon=True)
    listener.start()
    try:
        yield running
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if process.returncode is None:
            process.wait()
        listener.join(5)
        if process.stdout is not None:
            process.stdout.close()


def run(machine: Machine, name: str, program: Path, *args: Any, seconds: float = 600, **options: Any) -> Done:
    """Runs a job to its end; see `started`."""
    with started(machine, name, program, *args, **options) as running:
        return running.finish(seconds)


def succeeded(done: Done) -> Done:
    """A job that must have ended well."""
    if done.status:
        raise JobError(f"exit status {done.status}: {done.said()}")
    return done
