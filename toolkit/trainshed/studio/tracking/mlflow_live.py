"""The process that sends a run to MLflow while it runs: `python -m trainshed.studio.tracking.mlflow_live FOLDER EXPERIMENT`.

It lives until its standard input ends, then sends what is left and closes the run. What it says on standard output is in
runner/control/live_mlflow.py. Values are read on from the run's files as they grow; the last pass compares with what MLflow
has, so that nothing is missing or doubled whatever went wrong in between.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

from trainshed.base.errors import one_line
from trainshed.base.files import read_object, write_atomic
from trainshed.metrics.reading import MetricsReader
from trainshed.runner.state.outputs import outputs_of
from trainshed.runner.state.stored import load

from .exported import exported
from .mlflow_names import mlflow_name
from .mlflow_store import NOTED, MlflowError, MlflowRun, Value, alone_with, open_run, send_all

INTERVAL = 3.0  # seconds between two looks at what has been measured
LONGEST_PAUSE = 60.0  # seconds between two tries to reach MLflow
LAST_TRIES = 3  # when the run is over


class Live:
    """One run being sent."""

    def __init__(self, folder: str, experiment: str) -> None:
        self.folder, self.experiment = folder, experiment
        self.store: MlflowRun | None = None
        self.metrics = MetricsReader()
        self.sent: dict[str, int] = {}  # by metric of ours: values that have been sent
        self.theirs: set[str] = set()  # names, as MLflow has them, that the script itself sends
        noted = read_object(f"{folder}/{NOTED}", 1 << 20)
        self.ours = {name for name in noted.get("ours") or [] if isinstance(name, str)}
        self.again = bool(noted.get("run_id"))
        self.described = False

    def step(self) -> None:
        """Sends what is new. Raises MlflowError."""
        store = self.connected()
        run = load(self.folder)
        if not self.described:
            store.describe(exported(run, metrics=False))
            self.described = True
        self.metrics.read_on(outputs_of(self.folder))
        new: list[Value] = []
        curves = self.metrics.curves()
        counts = {name: len(curve.track) for name, curve in curves.items()}
        if self.again:  # a run that is resumed: MLflow has a part of it
            self.end()
            self.sent, self.again = counts, False
            return
        if any(len(curve.track) > self.sent.get(name, 0) for name, curve in curves.items()):
            self._look_for_theirs(set(curves), store)
        for name, curve in curves.items():
            known, track = mlflow_name(name), curve.track
            if known in self.theirs:
                continue
            for index in range(min(self.sent.get(name, 0), len(track)), len(track)):
                step = track.steps[index]
                number = int(step) if step == step else index + 1
                new.append((known, round(track.times[index] * 1000), number, track.values[index]))
        store.send(new)
        self.sent.update(counts)

    def connected(self) -> MlflowRun:
        """The run in MLflow. Raises MlflowError."""
        if self.store is None:
            name, run_id = os.environ.get("MLFLOW_RUN_NAME", ""), os.environ.get("MLFLOW_RUN_ID", "")
            run = exported(load(self.folder), metrics=False)
            with alone_with(self.folder):
                self.store = open_run(run, "", self.experiment, name=name, run_id=run_id)
            self._note()
            say(f"run {self.store.id}")
        return self.store

    def end(self) -> int:
        """Sends what is missing, and closes the run; how many values that were. Raises MlflowError."""
        store = self.connected()
        run = exported(load(self.folder))
        self._look_for_theirs({one.name for one in run.series}, store)
        with alone_with(self.folder):
            count, _, _ = send_all(run, store)
        return count

    def _look_for_theirs(self, names: set[str], store: MlflowRun) -> None:
        """Metrics that MLflow has, and not from us, are the script's own: they are left to it."""
        fresh = {mlflow_name(name) for name in names} - self.ours - self.theirs
        if not fresh:
            return
        there = store.names()
        self.theirs |= fresh & there
        self.ours |= fresh - there
        self._note()

    def _note(self) -> None:
        """For later exports: which metrics are the script's."""
        told = {"run_id": self.store.id if self.store else "", "ours": sorted(self.ours), "theirs": sorted(self.theirs)}
        try:
            write_atomic(f"{self.folder}/{NOTED}", json.dumps(told) + "\n")
        except OSError:
            pass


def main() -> None:
    """See above."""
    live = Live(sys.argv[1], sys.argv[2])
    pause, said = INTERVAL, ""
    wait = 0.0
    while not _over(wait):
        try:
            live.step()
            wait = pause = INTERVAL
        except MlflowError as error:
            if not said:  # once, however long it lasts
                said = one_line(error.message)
                say(f"problem {said}")
            wait, pause = pause, min(LONGEST_PAUSE, pause * 2)
    for attempt in range(LAST_TRIES):
        try:
            say(f"done {live.end()}")
            return
        except MlflowError as error:
            if attempt == LAST_TRIES - 1:
                say(f"problem {one_line(error.message)}")
            time.sleep(1)


def say(text: str) -> None:
    """One line for the runner; a runner that is gone hears nothing."""
    try:
        os.write(1, text.encode("utf-8", "replace") + b"\n")
    except OSError:
        pass


def _over(seconds: float) -> bool:
    """Whether the runner wants an end, or is gone, within so many seconds."""
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready) and not os.read(0, 1)


if __name__ == "__main__":
    main()
