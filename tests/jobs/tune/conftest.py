"""Tests of tuning work in a project folder with a script whose trials take a moment each."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.runner_project import LIMIT, Project, project
from trainshed.runner.acting.leftovers import end_leftovers
from trainshed.runner.state import identity

__all__ = ["project"]

# Notes each start and each end in files beside the project, so that nothing can be run twice unnoticed.
SCRIPT = """\
import argparse, math, os, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.5)
parser.add_argument("--kind", default="a")
parser.add_argument("--epochs", type=int, default=3)
given = parser.parse_args()
name = f"{given.rate}-{given.kind}"
notes = os.environ["NOTES"]
with open(f"{notes}/started", "a") as file:
    file.write(name + "\\n")
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
path = os.environ["SM_CHECKPOINT_DIR"] + "/step"
first = int(open(path).read()) + 1 if os.path.exists(path) else 1
print("first step", first, flush=True)
for step in range(first, given.epochs + 1):
    loss = (given.rate - 0.3) ** 2 + 0.1 * (given.kind == "b") + 1 / step
    loss = {"nan": math.nan, "worse": 10.0}.get(given.kind, loss)
    print(f"metric {'other' if given.kind == 'silent' else 'loss'}={loss:.6f} step={step}", flush=True)
    with open(path + ".new", "w") as file:
        file.write(str(step))
    os.replace(path + ".new", path)
    while not stopped and os.path.exists(f"{notes}/hold-{given.kind}") and step >= 2:
        time.sleep(0.01)
    if stopped:
        sys.exit(0)
if given.kind == "fails":
    sys.exit("cannot do this")
with open(os.environ["SM_MODEL_DIR"] + "/rate", "w") as file:
    file.write(str(given.rate))
with open(f"{notes}/ended", "a") as file:
    file.write(name + "\\n")
"""
GRID = """\
job: {program: train.py, environment: {NOTES: "%s"}}
search:
  rate: [0.1, 0.25, 0.6]
  kind: [a, b]
objective: minimize loss
strategy: grid
max_parallel_jobs: 2
"""
# Its two best.
TWO = GRID.replace("0.1, 0.25, 0.6", "0.1, 0.25").replace("[a, b]", "[a]")


class Tunes:
    """A project with tuning files. notes: where its trials note what they do."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.notes = project.folder.parent / "notes"
        self.notes.mkdir()
        project.write({"train.py": SCRIPT})

    def file(self, text: str, name: str = "tune.yaml") -> str:
        """Writes a tuning file; `%s` in it stands for the folder of notes."""
        self.project.write({name: text.replace("%s", str(self.notes))})
        return name

    def folder(self, name: str = "tune") -> Path:
        return self.project.folder / "tunes" / name

    def trials(self, name: str = "tune") -> list[dict[str, Any]]:
        """What is kept of the trials, by number."""
        return [json.loads(path.read_text()) for path in sorted((self.folder(name) / "trials").glob("[0-9]*.json"))]

    def noted(self, what: str) -> list[str]:
        """Lines that the trials have written: `started` or `ended`."""
        path = self.notes / what
        return path.read_text().split() if path.exists() else []

    def runner(self, number: int, name: str = "tune") -> int:
        """PID of a trial's runner, 0 while there is none."""
        try:
            told = json.loads((self.folder(name) / f"trials/{number:04d}/status.json").read_text())["Trainshed"]
        except (OSError, ValueError, KeyError):
            return 0
        return int(told["Runner"]["Pid"]) if identity.is_alive(told["Runner"]) else 0


@pytest.fixture
def tunes(project: Project) -> Iterator[Tunes]:
    """A project for tuning; what a failed test has left running is ended."""
    made = Tunes(project)
    yield made
    project.end()
    for path in project.folder.parent.rglob("trials/*/status.json"):
        told = json.loads(path.read_text())["Trainshed"]
        if identity.is_alive(told["Runner"]):
            os.kill(told["Runner"]["Pid"], signal.SIGKILL)
        end_leftovers(told["RunId"], LIMIT)
