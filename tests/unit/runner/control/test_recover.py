"""A run whose runner was killed, as `stop` and `resume` find it later: the time in between was nobody's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainshed.runner.control.operations import public_status
from trainshed.runner.control.recover import settle
from trainshed.runner.display.runs import describe
from trainshed.runner.files import layout
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job
from trainshed.runner.state.job_json import described
from trainshed.runner.state.run_goodput import goodput_of
from trainshed.runner.state.status import StatusFile, seconds_of, trained
from trainshed.runner.state.stored import Stored, load

BEGAN = 1_795_261_200.0  # days ago, as far as the tests know


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that trained for ten seconds, from its second one on, until its runner was killed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = layout.claim(layout.plan(Job(name="digits", program="train.py"), in_containers=False, now=BEGAN))
    StatusFile(made, now=BEGAN).to("Training", now=BEGAN + 1)
    Path(made.folder, "job.json").write_text(json.dumps(described(made)))
    path = Path(made.folder, "status.json")
    told = json.loads(path.read_text())
    told["Trainshed"]["Runner"]["Started"] = 1
    path.write_text(json.dumps(told))
    for name, text, seconds in (
        (made.hosts[0].record, json.dumps({"started": BEGAN + 2, "state": "Training"}), 2),
        (made.log("algo-1"), "metric loss=1 step=1\n", 11),
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
        os.utime(name, (BEGAN + seconds, BEGAN + seconds))
    return made


def settled(run: Run) -> Stored:
    said: list[str] = []
    settle(load(run.folder), os.environ, said.append)
    return load(run.folder)


def test_the_time_in_which_nobody_watched_a_lost_run_is_no_training(run: Run) -> None:
    stored = settled(run)

    training = next(one for one in stored.status["SecondaryStatusTransitions"] if one["Status"] == "Training")
    assert seconds_of(training["EndTime"]) == BEGAN + 11
    assert stored.status["TrainingTimeInSeconds"] == stored.status["BillableTimeInSeconds"] == 10
    goodput = goodput_of(stored)
    assert goodput is not None and 11 <= goodput["WallSeconds"] < 3600


def test_the_time_in_which_nobody_watched_a_lost_run_is_a_pause_of_its_curves(run: Run) -> None:
    timeline: Any = pytest.importorskip("trainshed.studio.pages.timeline")
    stored = settled(run)
    ended = seconds_of(stored.status["TrainingEndTime"])

    assert ended is not None and ended - BEGAN - timeline.paused(stored.status) < 3600


def test_seconds_are_told_of_runs_that_are_over_alone(run: Run) -> None:
    lost = load(run.folder)
    assert "\n  seconds " not in describe(lost, ("Lost", "")) and "TrainingTimeInSeconds" not in public_status(
        lost, os.environ
    )

    assert "\n  seconds    training 10, billable 10\n" in describe(settled(run), ("Failed", ""))


def test_training_counts_from_each_start_to_the_end_after_it() -> None:
    from trainshed.runner.state.status import iso

    at = [("Starting", 0, 1), ("Training", 1, 5), ("Interrupted", 5, 6), ("Training", 6, 8), ("Failed", 8, 8),
          ("Restarting", 20, 21), ("Training", 21, 24), ("Uploading", 90, 91), ("Completed", 91, 91)]  # fmt: skip
    transitions = [{"Status": name, "StartTime": iso(BEGAN + begin), "EndTime": iso(BEGAN + end)} for name, begin, end in at]
    assert trained(transitions) == 7 + 4
