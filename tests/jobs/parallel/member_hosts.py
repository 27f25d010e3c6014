"""Hosts that come and go, each a process by itself, and the place where they meet."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ranks

from support.lazy import Lazy

torch = Lazy("torch")


class Place:
    """A meeting place, served as users do it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("trainshed: hosts meet at port "), line
        self._process, self.port = process, int(line.split()[-1])
        self.address, self.pid = f"127.0.0.1:{self.port}", process.pid

    def end(self) -> None:
        """As its owner would."""
        self._process.terminate()
        assert self._process.wait(60) == 0

    def kill(self) -> None:
        """It is gone at once."""
        self._process.kill()
        self._process.wait()

    def stand_still(self, seconds: float) -> None:
        """It answers nobody meanwhile."""
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def served(port: int = 0) -> Iterator[Place]:
    """A place at a port, or at any."""
    command = [sys.executable, "-m", "trainshed.parallel.data.meeting_place", "--port", str(port)]
    with subprocess.Popen(command, env=ranks.environment(0, 1, 0), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Place(process)
        finally:
            process.kill()


class Hosts:
    """Those of a job. Killed at the end of the context, if they are left.

    Args:
        folder: for what they find and keep.
        place: where they meet.
    """

    def __init__(self, folder: Path, place: str) -> None:
        self._folder, self._place, self._processes = folder, place, dict[str, Any]()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for name, process in self._processes.items():
            if kind is not None:
                print(f"{name}: {ranks.abort([process], str(self._folder / name))}")
            ranks.end([process])

    def start(self, name: str, how: str = "", begin: int = 3, last: int = 16, job: str = "", start: int = 1) -> None:
        """Starts one, for the first time or again (`member_workers`)."""
        out = self._out(name, start)
        out.mkdir()
        worker = "host" if start == 1 and not how.startswith("keeps") else "kept"
        works = (f"member_workers:{worker}", str(self._folder / job), name, self._place, how, begin, last)
        (self._processes[out.name],) = ranks.start(1, *works, out=str(out))

    def await_step(self, step: int, *names: str) -> None:
        """Until these hosts, which await something after that step, are there."""
        deadline = time.monotonic() + 200
        while not all((self._folder / f"{name}.at{step}").exists() for name in names):
            ended = [name for name in names if self._processes[name].exitcode is not None]
            assert not ended and time.monotonic() < deadline, [ranks.log(str(self._folder / name), 0) for name in names]
            time.sleep(0.05)

    def go_on(self) -> None:
        """Those that wait to be told so."""
        (self._folder / "go").touch()

    def awaken(self, name: str) -> None:
        """One that stands still."""
        os.kill(self._processes[name].pid, signal.SIGCONT)

    def found(self, name: str, start: int = 1) -> Any:
        """What it found, at its end."""
        out = self._out(name, start)
        self._processes[out.name].join(200)
        assert (out / "0.0").exists(), ranks.log(str(out), 0)
        return pickle.loads((out / "0.0").read_bytes())

    def gone(self, name: str) -> int:
        """How it ended."""
        self._processes[name].join(200)
        return int(self._processes[name].exitcode)

    def _out(self, name: str, start: int) -> Path:
        return self._folder / (name if start == 1 else f"{name}.{start}")


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether tensors are alike, bit by bit."""
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))
