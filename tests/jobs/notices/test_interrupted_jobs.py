"""Whole jobs that are told to stop: by signals, by Slurm, by clouds; with and without checkpoints."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from support.notice_jobs import TRAINING, Service, Train, free_port, service

pytestmark = [pytest.mark.torch, pytest.mark.safety]

# A script that ends well when it is asked to, without knowing of checkpoints.
POLITE = """\
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("up", flush=True)
time.sleep(600)
"""


def resumed_at(job: Train) -> set[int]:
    return {int(step) for step in re.findall(r"^.*start rank=\d+ step=(\d+)$", job.output, re.MULTILINE)}


def ended_at(job: Train) -> set[int]:
    return {int(step) for step in re.findall(r"^.*end rank=\d+ step=(\d+)$", job.output, re.MULTILINE)}


def interrupt(folder: Path, how: str, served: Service, **settings: object) -> Train:
    """Starts a job, interrupts it in the way asked for once it trains, and waits for its end."""
    env = {
        "sigterm": {},
        "slurm": {"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": str(int(time.time()) + 3600)},
        "ec2": {"AWS_EC2_METADATA_SERVICE_ENDPOINT": served.endpoint},
        "gce": {"GCE_METADATA_HOST": served.endpoint},
        "azure": {"TRAINSHED_AZURE_METADATA": served.endpoint},
    }[how]
    served.answers |= {"/latest/api/token": (200, "t"), "/latest/meta-data/instance-life-cycle": (200, "spot")}
    served.answers["/computeMetadata/v1/instance/preempted"] = (200, "FALSE")
    served.answers["/metadata/scheduledevents"] = (200, '{"Events": []}')
    with Train(folder, TRAINING, env=env, **settings) as job:
        ranks = settings.get("ranks", 1)
        job.until(*(f"loss rank={rank} " for rank in range(int(str(ranks)))))
        soon = time.gmtime(time.time() + 100)
        if how == "sigterm":
            job.signal(signal.SIGTERM)
        elif how == "slurm":
            job.signal(signal.SIGUSR2)
        elif how == "ec2":
            action = {"action": "terminate", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", soon)}
            served.answers["/latest/meta-data/spot/instance-action"] = (200, json.dumps(action))
        elif how == "gce":
            served.answers["/computeMetadata/v1/instance/preempted"] = (200, "TRUE")
        else:
            event = {"EventType": "Preempt", "NotBefore": time.strftime("%a, %d %b %Y %H:%M:%S GMT", soon)}
            served.answers["/metadata/scheduledevents"] = (200, json.dumps({"Events": [event]}))
        job.status = job.end()  # type: ignore[attr-defined]
    return job


def test_every_notice_saves_and_stops_and_the_next_run_resumes_at_the_same_step(tmp_path: Path) -> None:
    """One job, interrupted in every way there is, one after the other."""
    step = 0
    for how in ("sigterm", "slurm", "ec2", "gce", "azure"):
        with service() as served:
            job = interrupt(tmp_path, how, served)
        assert job.status == 0, (how, job.output)  # type: ignore[attr-defined]
        assert resumed_at(job) == {step}, how
        (step,) = ended_at(job)
        record = job.record()
        assert record["state"] == "Interrupted", how
        assert record["interruption"]["step"] == step, how
        assert record["interruption"]["checkpoint"] == f"{tmp_path}/checkpoints/step-{step:012d}", how
        assert f"Reporting training INTERRUPTED after step {step}" in job.output, how
        assert not (tmp_path / "output/failure").exists(), how
        assert not (tmp_path / "output/success").exists(), how
        assert not list((tmp_path / "tmp").glob("trainshed-*")), how
    with Train(tmp_path, TRAINING, env={"STEPS": str(step + 5)}) as again:
        assert again.end() == 0, again.output
    assert resumed_at(again) == {step}
    assert (tmp_path / "output/success").exists()


@pytest.mark.spine
def test_a_notice_reaches_all_ranks_and_they_stop_at_one_step(tmp_path: Path) -> None:
    with service() as served:
        job = interrupt(tmp_path, "ec2", served, ranks=2, interrupted_exit_code=75)
    assert job.status == 75, job.output  # type: ignore[attr-defined]
    (step,) = ended_at(job)
    assert job.record()["exit_code"] == 75
    with Train(tmp_path, TRAINING, ranks=2, env={"STEPS": str(step)}) as again:
        assert again.end() == 0, again.output
    assert resumed_at(again) == {step}


def test_a_signal_to_one_of_two_hosts_stops_both_at_the_same_step_and_they_resume_there(tmp_path: Path) -> None:
    def hosts(**env: str) -> list[Train]:
        port = free_port()
        names = ["127.0.0.1", "127.0.0.2"]
        return [
            Train(
                tmp_path / name,
                TRAINING,
                ranks=1,
                master_port=port,
                interrupted_exit_code=75,
                env={"SM_HOSTS": json.dumps(names), "SM_CURRENT_HOST": name, **env},
            )
            for name in names
        ]

    first, second = hosts()
    with first, second:
        first.until("loss rank=0 step=10")
        second.signal(signal.SIGTERM)
        assert [first.end(), second.end()] == [75, 75], first.output + second.output
    (step,) = ended_at(first) | ended_at(second)
    for job in (first, second):
        assert job.record()["interruption"]["step"] == step
        assert job.record()["interruption"]["checkpoint"] == f"{job.folder}/checkpoints/step-{step:012d}"
    assert first.record()["interruption"]["source"] == "another host"
    first, second = hosts(STEPS=str(step + 3))
    with first, second:
        assert [first.end(), second.end()] == [0, 0], first.output + second.output
    assert resumed_at(first) == resumed_at(second) == {step}


def test_a_script_without_checkpoints_gets_the_signal_itself(tmp_path: Path) -> None:
    with Train(tmp_path, POLITE, interrupted_exit_code=75) as job:
        job.until("up")
        job.signal(signal.SIGTERM)
        assert job.end() == 75, job.output
    assert job.record()["state"] == "Stopped"
    assert not (tmp_path / "output/failure").exists()
    assert not (tmp_path / "output/success").exists()


def test_a_platforms_notice_reaches_a_script_that_handles_sigterm_as_sigterm(tmp_path: Path) -> None:
    with service() as served:
        served.answers["/computeMetadata/v1/instance/preempted"] = (200, "FALSE")
        with Train(tmp_path, POLITE, env={"GCE_METADATA_HOST": served.endpoint}) as job:
            job.until("up")
            served.answers["/computeMetadata/v1/instance/preempted"] = (200, "TRUE")
            assert job.end() == 0, job.output
    assert job.record()["state"] == "Interrupted"


def test_a_platforms_notice_lets_a_script_without_any_handler_run_on(tmp_path: Path) -> None:
    script = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('done')\n"
    with service() as served:
        served.answers["/computeMetadata/v1/instance/preempted"] = (200, "TRUE")
        with Train(tmp_path, script, env={"GCE_METADATA_HOST": served.endpoint}) as job:
            job.until("up", "notice: Google preempts this machine")
            (tmp_path / "code/go").touch()
            assert job.end() == 0, job.output
    assert job.record()["state"] == "Completed"


def test_notices_can_be_switched_off(tmp_path: Path) -> None:
    with service() as served:
        served.answers["/computeMetadata/v1/instance/preempted"] = (200, "TRUE")
        with Train(tmp_path, "print('done')\n", env={"GCE_METADATA_HOST": served.endpoint}, notices="off") as job:
            assert job.end() == 0, job.output
        assert served.asked == []


def test_a_failure_after_a_stop_signal_is_still_a_failure(tmp_path: Path) -> None:
    with Train(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(600)\n") as job:
        job.until("up")
        job.signal(signal.SIGTERM)
        assert job.end() == 128 + signal.SIGTERM, job.output
    assert (tmp_path / "output/failure").exists()
