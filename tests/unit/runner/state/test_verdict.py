"""From the ends of the hosts to the end of the job."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from trainshed.runner.files import layout
from trainshed.runner.files.ending import Ending, HostEnd
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job
from trainshed.runner.state.verdict import judge


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    made = layout.plan(Job(name="x", instances=2, max_runtime_seconds=60), in_containers=False, now=0)
    layout.place(layout.claim(made), interface="lo")
    return made


def record(run: Run, host: str, state: str, kind: str = "", summary: str = "", text: str = "", first: str = "") -> None:
    """What `train` would leave on a host. first: the host that all agree to have failed first."""
    tree = next(one for one in run.hosts if one.name == host)
    failure = {"failure": {"kind": kind, "summary": summary, "host": first}} if kind else {}
    Path(tree.record).parent.mkdir(parents=True)
    Path(tree.record).write_text(json.dumps({"state": state, **failure}))
    if text:
        Path(tree.failure).write_text(text)


def test_all_hosts_with_status_zero_complete_the_job(run: Run) -> None:
    verdict = judge(run, Ending((HostEnd("algo-1", 0), HostEnd("algo-2", 0))))
    assert (verdict.status, verdict.secondary, verdict.exit_code) == ("Completed", "Completed", 0)


def test_the_failed_hosts_status_and_reason_are_the_jobs(run: Run) -> None:
    record(run, "algo-2", "Failed", "UserError", "ValueError: no", "UserError: ValueError: no\n" + "x" * 5000)
    verdict = judge(run, Ending((HostEnd("algo-2", 3), HostEnd("algo-1", 143, asked=True))))
    assert (verdict.status, verdict.exit_code, verdict.failed_host) == ("Failed", 3, "algo-2")
    assert verdict.reason.startswith("UserError: ValueError: no")
    assert len(verdict.reason.encode()) <= 1024


def test_a_host_that_lost_its_peer_is_not_the_cause_even_if_it_ended_first(run: Run) -> None:
    record(run, "algo-1", "Failed", "UserError", "RuntimeError: Connection closed by peer [10.0.0.2]:4021", "lost")
    record(run, "algo-2", "Failed", "UserError", "KeyError: 'x'", "the cause")
    verdict = judge(run, Ending((HostEnd("algo-1", 1), HostEnd("algo-2", 7, asked=True))))
    assert (verdict.failed_host, verdict.exit_code, verdict.reason) == ("algo-2", 7, "the cause")


def test_the_host_that_all_agree_on_failed_first_whoever_ended_first(run: Run) -> None:
    for host in ("algo-1", "algo-2"):
        record(run, host, "Failed", "UserError", "KeyError: 'x'", f"as {host} tells it", first="algo-2")
    verdict = judge(run, Ending((HostEnd("algo-1", 7), HostEnd("algo-2", 7))))
    assert (verdict.failed_host, verdict.exit_code, verdict.reason) == ("algo-2", 7, "as algo-2 tells it")


def test_without_a_failure_file_the_last_line_has_to_do(run: Run) -> None:
    Path(run.log("algo-1")).write_text("one\ntwo\n\n")
    verdict = judge(run, Ending((HostEnd("algo-1", 137, "its memory limit was reached"), HostEnd("algo-2", 0))))
    assert verdict.reason == "algo-1 exited with 137 (its memory limit was reached); its last line: two"


def test_a_stopped_job_has_the_signals_status(run: Run) -> None:
    ends = (HostEnd("algo-1", 0, asked=True), HostEnd("algo-2", 143, asked=True))
    verdict = judge(run, Ending(ends, stop_signal=signal.SIGINT))
    assert (verdict.status, verdict.secondary, verdict.exit_code) == ("Stopped", "Stopped", 130)


def test_a_failure_before_the_stop_signal_counts(run: Run) -> None:
    ends = (HostEnd("algo-1", 9), HostEnd("algo-2", 143, asked=True))
    assert judge(run, Ending(ends, stop_signal=signal.SIGTERM)).exit_code == 9


def test_a_job_whose_time_is_over_is_stopped(run: Run) -> None:
    ends = (HostEnd("algo-1", 0, asked=True), HostEnd("algo-2", 0, asked=True))
    verdict = judge(run, Ending(ends, timed_out=True))
    assert (verdict.status, verdict.secondary, verdict.exit_code) == ("Stopped", "MaxRuntimeExceeded", 124)


def test_a_job_that_somebody_else_stopped_is_not_completed(run: Run) -> None:
    record(run, "algo-1", "Stopped")
    verdict = judge(run, Ending((HostEnd("algo-1", 0), HostEnd("algo-2", 0))))
    assert (verdict.status, verdict.exit_code) == ("Stopped", 143)


@pytest.mark.parametrize(
    ("settings", "codes", "status"),
    [
        ({"trainshed_engine": "torchrun", "trainshed_min_nodes": 2}, (137, 0, 0), "Completed"),
        ({"trainshed_engine": "torchrun", "trainshed_min_nodes": "2"}, (69, 0, 0), "Completed"),
        ({"trainshed_engine": "torchrun", "trainshed_min_nodes": 2}, (137, 137, 0), "Failed"),
        ({"trainshed_engine": "torchrun", "trainshed_min_nodes": 3}, (137, 0, 0), "Failed"),
        ({"trainshed_min_nodes": 2}, (137, 0, 0), "Failed"),
        ({}, (137, 0, 0), "Failed"),
    ],
)
def test_an_elastic_job_completes_without_hosts_that_it_does_not_need(
    settings: dict[str, object], codes: tuple[int, ...], status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = Job(name="x", instances=3, max_runtime_seconds=60, hyperparameters=dict(settings))
    made = layout.plan(job, in_containers=False, now=0)
    layout.place(layout.claim(made), interface="lo")
    verdict = judge(made, Ending(tuple(HostEnd(f"algo-{number}", code) for number, code in enumerate(codes, 1))))
    assert verdict.status == status
