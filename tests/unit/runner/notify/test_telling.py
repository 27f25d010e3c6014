"""What is told of a run, and when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainshed.base.errors import JobError
from trainshed.runner import make_job
from trainshed.runner.files import layout
from trainshed.runner.files.ending import RunEnd
from trainshed.runner.files.metrics import Metrics
from trainshed.runner.job.job import Job, Notify
from trainshed.runner.job.write import job_file
from trainshed.runner.notify import telling
from trainshed.runner.state.job_json import job_of, masked
from trainshed.runner.state.status import StatusFile


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was handed to the process that sends."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(telling, "_start", lambda message, log: found.append(json.loads(json.dumps(message))))
    return found


def status_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *ways: Notify) -> StatusFile:
    monkeypatch.chdir(tmp_path)
    run = layout.plan(Job(name="x", notify=ways), in_containers=False, now=0)
    layout.place(layout.claim(run), interface="lo")
    return StatusFile(run, secrets=("tigerpass1",))


def test_a_run_is_told_from_its_start_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[dict[str, Any]]
) -> None:
    status = status_of(tmp_path, monkeypatch, Notify("all", to="https://a"), Notify("bad", to="https://b", on=("failure",)))
    for secondary in ("Training", "Interrupted", "Restarting", "Training"):
        status.to(secondary)
    rules = Path(status.run.hosts[0].output) / "rules"
    rules.mkdir(parents=True)
    (rules / "a.json").write_text(json.dumps({"rule": "Spike", "action": "note", "text": "loss 9", "time": 1.0, "step": 7}))
    status.look_at_rules(now=True)
    status.look_at_rules(now=True)
    metrics = Metrics()
    metrics.scan(b"metric loss=0.25\n")
    reason = "ValueError: tigerpass1 is wrong\nTraceback"
    status.ended(RunEnd("Failed", "Failed", 1, "algo-1", reason), None, metrics, "")

    assert [one["notice"]["event"] for one in sent] == ["start", "interruption", "rule", "failure"]
    assert [len(one["ways"]) for one in sent] == [1, 1, 1, 2]
    assert sent[2]["notice"]["reason"] == "Spike: loss 9 (step 7)"
    last = sent[-1]["notice"]
    assert last["title"] == f"{status.run.name}: has failed" and last["metrics"] == "loss 0.25"
    assert "tigerpass1" not in json.dumps(sent) and "is wrong" in last["text"]


def test_nothing_is_started_for_a_job_that_tells_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[dict[str, Any]]
) -> None:
    status = status_of(tmp_path, monkeypatch)
    status.to("Training")
    status.look_at_rules(now=True)
    assert sent == []


def test_the_field_is_read_kept_and_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").touch()
    given = {"hook": "https://example.com/x", "team": {"kind": "slack", "to_env": "HOOK", "on": ["failure", "rule"]}}
    job = make_job(program="t.py", notify=given)

    assert job.notify == (
        Notify("hook", to="https://example.com/x"),
        Notify("team", "slack", "", "HOOK", ("failure", "rule")),
    )
    assert job_of(json.loads(json.dumps(masked(job)))).notify == job.notify
    (tmp_path / "again.yaml").write_text(job_file(job, ""))
    assert make_job("again.yaml").notify == job.notify


@pytest.mark.parametrize(("way", "message"), [
    ({"kind": "slack", "to": "https://hooks.slack.com/services/T00000000/B00000000/" + "x" * 24}, "contains a secret"),
    ("anna@example.com", "is not an address of the web"),
    ({"kind": "email", "to": "anna"}, "is not an e-mail address"),
    ({"to_env": "A B"}, "is not a valid variable name"),
    ({"kind": "slack"}, "needs one of `to` and `to_env`"),
    ({"kind": "pigeon", "to": "https://a"}, "must be one of webhook, slack, teams, email, command"),
    ({"to": "https://a", "on": ["faliure"]}, "'faliure' is not an event"),
    ({"to": "https://a", "server": "a b"}, "must be a host, or host:port"),
    ({"to": "https://a", "if": 1}, "is not known here"),
], ids=repr)  # fmt: skip
def test_what_is_wrong_is_said(way: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").touch()
    with pytest.raises(JobError) as caught:
        make_job(program="t.py", notify={"me": way})

    assert [problem.message for problem in caught.value.problems if message in problem.message], caught.value.problems
    assert "hooks.slack" not in str(caught.value.problems)
