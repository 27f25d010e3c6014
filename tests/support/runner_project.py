"""Fixtures for tests of the runner: a project folder, and `trainshed` as a person would start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.command_line import answer
from support.finished import Finished
from support.paths import TOOLKIT as TOOLKIT_FOLDER
from trainshed.runner.acting.leftovers import end_leftovers
from trainshed.runner.state import identity

TOOLKIT = str(TOOLKIT_FOLDER)
LIMIT = 300.0  # seconds after which something hangs


@dataclass
class Project:
    """A folder with code and data; `trainshed` runs in it, with the interpreter `python`."""

    folder: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    python: str = sys.executable

    def write(self, files: dict[str, str]) -> Project:
        """Files by their path below the folder."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return self

    def trainshed(self, *arguments: str, **environment: str) -> Finished:
        """Runs `trainshed` to its end."""
        process = self.start(*arguments, **environment)
        stdout, stderr = process.communicate(timeout=LIMIT)
        return Finished(process.returncode, stdout, stderr)

    def command(self, *arguments: str, **environment: str) -> Finished:
        """The same in this process, for a command that only reads, prints or refuses: no interpreter is started."""
        return answer(arguments, self.folder, self.environ(**environment))

    def environ(self, **environment: str) -> dict[str, str]:
        """The variables of a command here: no job's own, and a cache of channels beside the project."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SM_", "TRAINSHED_"))}
        cache = {"TRAINSHED_CHANNEL_CACHE": f"{self.folder.parent}/cache"}
        return {**inherited, "PYTHONPATH": TOOLKIT, **cache, **environment}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Starts `trainshed` in the background."""
        process = subprocess.Popen(
            [self.python, "-m", "trainshed.cli", *arguments],
            cwd=self.folder,
            env=self.environ(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    @property
    def run(self) -> Path:
        """The folder of the only run there is."""
        (found,) = (self.folder / "runs").iterdir()
        return found

    def end(self) -> None:
        """Ends what a failed test has left running."""
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(LIMIT)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        for path in self.folder.glob("runs/*/status.json"):  # those that run in the background
            told = json.loads(path.read_text())["Trainshed"]
            if identity.is_alive(told.get("Runner")):
                os.kill(told["Runner"]["Pid"], signal.SIGKILL)
            end_leftovers(told["RunId"], LIMIT)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """An empty project, whose commands know the runs of no other one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Project(tmp_path / "project")
    made.folder.mkdir()
    yield made
    made.end()


def wait_until(condition: Callable[[], object], what: str, seconds: float = 180.0) -> None:
    """Waits for something to become true. Raises AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not in {seconds:g} s"
        time.sleep(0.05)
