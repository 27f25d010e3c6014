"""Tests of pipelines work in a project folder with a script whose runs note that they have run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.finished import Finished
from support.runner_project import LIMIT, Project, project
from trainshed.runner.acting.leftovers import end_leftovers
from trainshed.runner.state import identity
from trainshed.studio.tune.tuning_folder import TuningFolder

__all__ = ["project"]

# Adds up what the channels hold; notes each start and end in files beside the project: nothing is run twice unnoticed.
SCRIPT = """\
import argparse, os, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--step", default="x")
parser.add_argument("--add", type=float, default=1)
given = parser.parse_args()
notes = os.environ["NOTES"]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
with open(f"{notes}/started", "a") as file:
    file.write(given.step + "\\n")
total = given.add
for name in os.environ.get("SM_CHANNELS", "[]").strip("[]").replace('"', "").split(","):
    if name.strip():
        folder = os.environ["SM_CHANNEL_" + name.strip().upper()]
        total += sum(float(open(f"{folder}/{one}").read()) for one in os.listdir(folder))
while os.path.exists(f"{notes}/hold-{given.step}") and not stopped:
    time.sleep(0.01)
if stopped:
    sys.exit(0)
if os.path.exists(f"{notes}/fail-{given.step}"):
    sys.exit("cannot do this")
print(f"metric total={total}", flush=True)
with open(os.environ["SM_MODEL_DIR"] + "/total", "w") as file:
    file.write(str(total))
with open(f"{notes}/ended", "a") as file:
    file.write(given.step + "\\n")
"""
CHAIN = """\
params: {more: 1, least: 3}
steps:
  prepare:
    run:
      program: step.py
      environment: {NOTES: "%s"}
      hyperparameters: {step: prepare}
  train:
    run:
      program: step.py
      environment: {NOTES: "%s"}
      hyperparameters:
        step: train
        add: ${params.more}
      channels:
        data: ${steps.prepare.model}
  evaluate:
    run:
      program: step.py
      environment: {NOTES: "%s"}
      hyperparameters:
        step: evaluate
        add: ${steps.train.metrics.total}
      channels:
        model: ${steps.train.model}
  good:
    condition: ${steps.evaluate.metrics.total} >= ${params.least}
  keep:
    when: good
    register: {model: digits, from: train, stage: champion, metrics: evaluate, licence: mit}
"""


class Pipelines:
    """A project with pipelines. notes: where its runs note what they do."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.notes = project.folder.parent / "notes"
        self.notes.mkdir()
        project.write({"code/step.py": SCRIPT})

    def file(self, text: str = CHAIN, name: str = "chain.yaml") -> str:
        """Writes a pipeline's file; `%s` in it stands for the folder of notes."""
        self.project.write({name: text.replace("%s", str(self.notes)).replace("step.py", "code/step.py")})
        return name

    def __call__(self, *arguments: str) -> Finished:
        return self.project.trainshed(*arguments, **self.environment)

    @property
    def environment(self) -> dict[str, str]:
        return {"TRAINSHED_MODEL_STORE": f"{self.project.folder.parent}/store"}

    def folder(self, name: str = "chain") -> Path:
        return self.project.folder / "pipelines" / name

    def states(self, name: str = "chain") -> dict[str, str]:
        """How each step stands, by name; `reused` where it was."""
        told = json.loads(self("steps", "status", name, "--json").stdout)
        return {one["name"]: "reused" if one["cached"] else one["state"] for one in told["steps"]}

    def noted(self, what: str) -> list[str]:
        """Steps that have `started` or `ended`, in order."""
        path = self.notes / what
        return path.read_text().split() if path.exists() else []

    def runner(self, run: str, name: str = "chain") -> int:
        """PID of a run's runner, 0 while there is none."""
        try:
            told: dict[str, Any] = json.loads((self.folder(name) / f"runs/{run}/status.json").read_text())["Trainshed"]
        except (OSError, ValueError, KeyError):
            return 0
        return int(told["Runner"]["Pid"]) if identity.is_alive(told["Runner"]) else 0

    def tuner(self, run: str, name: str = "chain") -> int:
        """PID of the tuner of a step's tuning job, 0 while there is none."""
        return max(0, TuningFolder(str(self.folder(name) / "runs" / run)).worker)


@pytest.fixture
def pipelines(project: Project) -> Iterator[Pipelines]:
    """A project for pipelines; what a failed test has left running is ended."""
    made = Pipelines(project)
    yield made
    project.end()
    for path in project.folder.rglob("tuner.lock"):
        if (pid := TuningFolder(str(path.parent)).worker) > 0:
            os.kill(pid, signal.SIGKILL)
    for path in project.folder.rglob("pipelines/*/runs/**/status.json"):
        told = json.loads(path.read_text())["Trainshed"]
        if identity.is_alive(told["Runner"]):
            os.kill(told["Runner"]["Pid"], signal.SIGKILL)
        end_leftovers(told["RunId"], LIMIT)
