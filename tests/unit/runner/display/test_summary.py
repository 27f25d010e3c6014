"""The closing summary of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainshed.runner.display.summary import headline, render
from trainshed.runner.files import layout
from trainshed.runner.files.ending import RunEnd
from trainshed.runner.files.metrics import Metrics
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job

REASON = """\
UserError: rank 1 on algo-1 exited with 1: ValueError: no such split
  at train.py:14 in load
hint: use one of train, test

Traceback (most recent call last):
  File "/opt/ml/code/train.py", line 14, in load
ValueError: no such split

last output:
epoch 1
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    made = layout.plan(Job(name="x"), in_containers=False, now=0)
    layout.place(layout.claim(made), interface="lo")
    return made


def summary(run: Run, verdict: RunEnd) -> str:
    return render(run, verdict, {"training": 2.0}, Metrics(), None, 3.0)


def test_a_failure_is_told_in_three_lines_and_the_file_that_holds_all_of_it_is_named(run: Run) -> None:
    Path(run.hosts[0].failure).write_text(REASON)
    text = summary(run, RunEnd("Failed", "Failed", 1, "algo-1", REASON))

    assert text.endswith(
        "\n\n  UserError: rank 1 on algo-1 exited with 1: ValueError: no such split\n"
        "    at train.py:14 in load\n  hint: use one of train, test\n"
    )
    assert f"  failure    runs/{run.name}/algo-1/output/failure  (traceback and last output)\n" in text
    assert "Traceback" not in text


def test_what_rules_have_found_is_told_once_each(run: Run) -> None:
    folder = Path(run.hosts[0].output) / "rules"
    folder.mkdir(parents=True)
    found = {"rule": "LossSpike", "action": "warn", "text": "loss was 9", "time": 1.0}
    lines = [found, found, *({**found, "rule": f"Own{number}"} for number in range(6))]
    (folder / "algo-1.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = summary(run, RunEnd("Completed", "Completed", 0, "", ""))

    assert "  rules      LossSpike: loss was 9\n             Own0: loss was 9\n" in text
    assert "             Own3: loss was 9\n             and 2 more\n" in text and "Own4" not in text


def test_a_reason_without_a_failure_file_is_told_and_names_none(run: Run) -> None:
    text = summary(run, RunEnd("Failed", "Failed", 3, "algo-1", "algo-1 exited with 3; it printed nothing"))

    assert text.endswith("\n\n  algo-1 exited with 3; it printed nothing\n")
    assert "  failure  " not in text


def test_a_run_with_metrics_ends_with_its_reports_path(run: Run) -> None:
    data = Path(run.hosts[0].output) / "data"
    data.mkdir(parents=True, exist_ok=True)
    (data / "report.html").touch()
    good = RunEnd("Completed", "Completed", 0, "", "")
    assert summary(run, good).endswith(f"\n  report     runs/{run.name}/algo-1/output/data/report.html\n")

    (data / "trainshed-report.html").touch()  # the other one is the script's own
    assert summary(run, good).endswith(f"\n  report     runs/{run.name}/algo-1/output/data/trainshed-report.html\n")


def test_a_reason_of_the_scripts_own_ends_before_its_traceback() -> None:
    own = "Exception during training: no\nTraceback (most recent call last):\n  File ..."
    assert headline(own) == ["Exception during training: no"]
    assert headline("Traceback (most recent call last):\n  File ...\nValueError: no\n\nUserError: x") == ["ValueError: no"]
    assert headline("") == []
