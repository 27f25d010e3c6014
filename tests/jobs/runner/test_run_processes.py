"""`trainshed run` with processes for hosts, from the command line to the files it leaves."""

from __future__ import annotations

import json
import os
import signal
import tarfile
from pathlib import Path

import pytest

from support.runner_project import LIMIT, Project, wait_until
from trainshed.runner.acting.leftovers import processes_of

TRAIN = """\
import json, os, sys
print("arguments", json.dumps(sys.argv[1:]), flush=True)
print("metric loss=0.9 step=0", flush=True)
print("metric loss=0.1 step=1", flush=True)
host = os.environ["SM_CURRENT_HOST"]
for folder, name in (("SM_MODEL_DIR", "model.bin"), ("SM_OUTPUT_DATA_DIR", "host.txt"), ("SM_CHECKPOINT_DIR", "last")):
    with open(os.path.join(os.environ[folder], name), "w") as file:
        file.write("x" if folder == "SM_MODEL_DIR" else host)
print(sorted(os.listdir(os.environ["SM_CHANNEL_TRAIN"])))
"""
# Waits for a stop signal, with a child that would outlive it.
NAP = """\
import os, signal, subprocess, sys, time
def stop(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("saving", flush=True)
    time.sleep(float(os.environ.get("SAVING", "0")))
    open(os.environ["SM_MODEL_DIR"] + "/saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
subprocess.Popen(["sleep", "600"])
print("napping", flush=True)
while True:
    time.sleep(0.1)
"""
FAIL_ON_TWO = """\
import os, sys, time
if os.environ["SM_CURRENT_HOST"] == "algo-2":
    print("about to fail", flush=True)
    raise ValueError("host two is unhappy")
print("waiting", flush=True)
time.sleep(600)
"""


@pytest.fixture
def training(project: Project) -> Project:
    """A project whose script trains, and whose data is one file."""
    return project.write({"src/train.py": TRAIN, "src/nap.py": NAP, "src/fail.py": FAIL_ON_TWO, "data/a.csv": "1\n"})


def status(run: Path) -> dict[str, object]:
    return json.loads((run / "status.json").read_text())


def names(run: Path, archive: str) -> list[str]:
    with tarfile.open(run / "output" / archive) as tar:
        return sorted(tar.getnames())


def run_id(run: Path) -> str:
    return json.loads((run / "job.json").read_text())["id"]


def said(project: Project, text: str) -> bool:
    """Whether every host's log has the text."""
    logs = list(project.folder.glob("runs/*/logs/*.log"))
    return bool(logs) and all(text in log.read_text() for log in logs)


@pytest.mark.spine
def test_one_host_trains_and_everything_comes_home(training: Project) -> None:
    done = training.trainshed("run", "src/train.py", "--hp", "lr=1.10", "--hp", "big=1e5", "--channel", "train=data")
    run = training.run
    assert done.status == 0, done.output
    assert 'arguments ["--big", "1e5", "--lr", "1.10"]' in done.stdout
    assert "['a.csv']" in done.stdout
    assert names(run, "model.tar.gz") == ["model.bin"]
    assert {"success", "data/host.txt", "data/run/algo-1.json"} <= set(names(run, "output.tar.gz"))
    assert (run / "checkpoints/last").read_text() == "algo-1"
    assert (run / "algo-1/code/train.py").read_text() == TRAIN
    summary = done.stderr
    assert f"completed    {run.name} in " in summary
    assert "training " in summary and "collecting " in summary
    assert "loss 0.9 -> 0.1" in summary
    assert "output/model.tar.gz  (1 file, 1 B" in summary


def test_the_status_has_the_platforms_shape_and_every_transition(training: Project) -> None:
    training.trainshed("run", "src/train.py", "--channel", "train=data", "--hp", "api_key=hunter22", "--name", "digits")
    found = status(training.run)
    assert found["TrainingJobName"] == training.run.name
    assert found["TrainingJobName"].startswith("digits-20")  # type: ignore[attr-defined]
    assert (found["TrainingJobStatus"], found["SecondaryStatus"]) == ("Completed", "Completed")
    transitions = found["SecondaryStatusTransitions"]
    assert [one["Status"] for one in transitions] == ["Starting", "Training", "Uploading", "Completed"]  # type: ignore[attr-defined]
    assert all(one["StartTime"] <= one["EndTime"] for one in transitions)  # type: ignore[attr-defined]
    (metric,) = found["FinalMetricDataList"]  # type: ignore[misc]
    assert (metric["MetricName"], metric["Value"]) == ("loss", 0.1)
    assert found["ModelArtifacts"] == {"S3ModelArtifacts": f"file://{training.run}/output/model.tar.gz"}
    text = (training.run / "status.json").read_text() + (training.run / "job.json").read_text()
    assert "hunter22" not in text


@pytest.mark.spine
def test_two_hosts_train_side_by_side_and_their_lines_are_tagged(training: Project) -> None:
    done = training.trainshed("run", "src/train.py", "--channel", "train=data", "--instances", "2")
    assert done.status == 0, done.output
    lines = done.stdout.splitlines()
    assert {line[:9] for line in lines} == {"[algo-1] ", "[algo-2] "}
    assert {"algo-1/data/host.txt", "algo-2/data/host.txt", "success"} <= set(names(training.run, "output.tar.gz"))
    assert names(training.run, "model.tar.gz") == ["model.bin"]


def test_a_job_file_runs_from_anywhere(training: Project) -> None:
    training.write({"jobs/job.yaml": "name: digits\nprogram: ../src/train.py\nchannels: {train: ../data}\n"})
    done = training.trainshed("run", "jobs/job.yaml", "--output", "out")
    assert done.status == 0, done.output
    assert (training.folder / "out/output/model.tar.gz").is_file()
    again = training.command("run", "jobs/job.yaml", "--output", "out")
    assert again.status == 1
    assert "out holds an earlier run" in again.stderr


@pytest.mark.spine
def test_a_failed_host_ends_the_others_and_gives_the_reason(training: Project) -> None:
    done = training.trainshed("run", "src/fail.py", "--instances", "2")
    found = status(training.run)
    assert done.status == 1
    assert (found["TrainingJobStatus"], found["Trainshed"]["FailedHost"]) == ("Failed", "algo-2")  # type: ignore[index]
    assert "ValueError: host two is unhappy" in str(found["FailureReason"])
    assert "fail.py:4" in str(found["FailureReason"])
    summary = done.stderr[done.stderr.index("failed       ") :]
    assert "exit       1 on algo-2" in summary
    assert "ValueError: host two is unhappy" in summary
    assert {"failure", "algo-2/failure"} <= set(names(training.run, "output.tar.gz"))
    assert "success" not in names(training.run, "output.tar.gz")
    assert not processes_of(run_id(training.run))


def test_the_scripts_own_status_is_the_runs(training: Project) -> None:
    training.write({"src/seven.py": "raise SystemExit(7)"})
    assert training.trainshed("run", "src/seven.py").status == 7


@pytest.mark.safety
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_signal_lets_the_script_save_and_leaves_nothing(training: Project, number: signal.Signals, code: int) -> None:
    process = training.start("run", "src/nap.py", "--instances", "2")
    wait_until(lambda: said(training, "napping"), "both hosts nap")
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=LIMIT)
    found = status(training.run)
    assert process.returncode == code, stderr
    assert {"[algo-1] saving", "[algo-2] saving"} <= set(stdout.splitlines())
    assert "model.tar.gz  (1 file" in stderr
    assert (found["TrainingJobStatus"], found["SecondaryStatus"]) == ("Stopped", "Stopped")
    transitions = [one["Status"] for one in found["SecondaryStatusTransitions"]]  # type: ignore[attr-defined]
    assert transitions == ["Starting", "Training", "Stopping", "Uploading", "Stopped"]
    assert not processes_of(run_id(training.run))


@pytest.mark.safety
def test_ctrl_c_again_kills_a_script_that_takes_its_time(training: Project) -> None:
    process = training.start("run", "src/nap.py", "--env", "SAVING=600")
    wait_until(lambda: said(training, "napping"), "the script naps")
    process.send_signal(signal.SIGINT)
    wait_until(lambda: said(training, "saving"), "the script saves")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "killing the job" in stderr
    assert not processes_of(run_id(training.run))


@pytest.mark.safety
def test_a_script_that_ignores_its_stop_signal_is_killed_after_its_grace(training: Project) -> None:
    training.write(
        {"src/deaf.py": NAP.replace("signal.signal(signal.SIGTERM, stop)", "signal.signal(signal.SIGTERM, print)")}
    )
    process = training.start("run", "src/deaf.py", "--grace", "0.2")
    wait_until(lambda: said(training, "napping"), "the script naps")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 143
    assert status(training.run)["TrainingJobStatus"] == "Stopped"
    assert not processes_of(run_id(training.run))


def test_a_job_whose_time_is_over_is_stopped(training: Project) -> None:
    done = training.trainshed("run", "src/nap.py", "--max-runtime", "3")
    found = status(training.run)
    assert done.status == 124
    assert (found["TrainingJobStatus"], found["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert "saving" in done.stdout or "napping" not in done.stdout, "a slow machine may not even have got to the script"


@pytest.mark.safety
@pytest.mark.spine
def test_hosts_end_when_their_runner_is_killed(training: Project) -> None:
    process = training.start("run", "src/nap.py", "--instances", "2")
    wait_until(lambda: said(training, "napping"), "both hosts nap")
    identity = run_id(training.run)
    assert processes_of(identity)
    process.kill()
    process.communicate(timeout=LIMIT)
    wait_until(lambda: not processes_of(identity), "the hosts end")
    assert (training.run / "model/saved").exists()


@pytest.mark.safety
def test_the_callers_own_job_does_not_leak_into_the_run(training: Project) -> None:
    training.write(
        {"src/env.py": "import os\nprint([k for k in os.environ if k in ('RANK', 'SM_HP_OLD')], os.environ['SM_MODEL_DIR'])"}
    )
    done = training.trainshed("run", "src/env.py", RANK="3", SM_HP_OLD="1", SM_MODEL_DIR="/nowhere", TRAINSHED_PROGRAM="x")
    assert done.status == 0, done.output
    assert f"[] {training.run}/algo-1/model" in done.stdout


def test_variables_of_the_job_reach_the_script(training: Project) -> None:
    training.write({"src/env.py": "import os; print(os.environ['MINE'], os.environ['TRAINING_JOB_NAME'])"})
    done = training.trainshed("run", "src/env.py", "--env", "MINE=a b")
    assert f"a b {training.run.name}" in done.stdout


def test_bytes_that_are_no_utf_8_and_a_line_without_an_end_come_through(training: Project) -> None:
    training.write({"src/odd.py": "import sys; sys.stdout.buffer.write(b'caf\\xe9\\nlast')"})
    done = training.trainshed("run", "src/odd.py")
    assert done.stdout == "caf\\xe9\nlast\n"


def test_a_hundred_thousand_lines_arrive_whole(training: Project) -> None:
    training.write({"src/chatty.py": "for n in range(100_000): print('line', n)"})
    done = training.trainshed("run", "src/chatty.py")
    assert done.stdout == "".join(f"line {n}\n" for n in range(100_000))


def test_a_reader_that_goes_away_does_not_end_the_job(training: Project) -> None:
    training.write({"src/chatty.py": "import time\nfor n in range(20000): print('line', n)\nprint('done')"})
    process = training.start("run", "src/chatty.py")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(LIMIT) == 0
    assert "line 19999\ndone\n" in (training.run / "logs/algo-1.log").read_text()


def test_a_dry_run_prints_everything_and_makes_nothing(training: Project) -> None:
    done = training.command("run", "src/train.py", "--instances", "2", "--env", "API_TOKEN=hunter22", "--dry-run")
    assert done.status == 0
    assert not (training.folder / "runs").exists()
    assert "hunter22" not in done.output
    for text in (
        "algo-1, algo-2, processes of this machine",
        "resourceconfig.json {",
        "API_TOKEN=******",
        "MASTER_ADDR=127.0.0.1",
    ):
        assert text in done.stdout


def test_limits_that_processes_cannot_have_are_named(training: Project) -> None:
    done = training.trainshed("run", "src/train.py", "--channel", "train=data", "--memory", "1g")
    assert done.status == 0
    assert "warning: resources.memory: only containers can be limited" in done.stderr


def test_metrics_of_the_jobs_own_and_those_that_never_came(training: Project) -> None:
    training.write({"src/log.py": "print('epoch 1 accuracy: 93.5%')"})
    metrics = ["--metric", "acc=accuracy: ([0-9.]+)", "--metric", "f1=f1: ([0-9.]+)"]
    done = training.trainshed("run", "src/log.py", *metrics)
    assert "metrics    acc 93.5" in done.stderr
    assert "metric 'f1': its regular expression has matched no line" in done.stderr
    config = json.loads((training.run / "algo-1/input/config/metric-definition-regex.json").read_text())
    assert [one["Name"] for one in config] == ["acc", "f1"]


def test_checkpoints_outlive_the_run_where_the_job_says_so(training: Project) -> None:
    for _ in range(2):
        done = training.trainshed("run", "src/train.py", "--channel", "train=data", "--checkpoints", "kept")
        assert done.status == 0, done.output
    assert os.listdir(training.folder / "kept") == ["last"]


@pytest.mark.spine
@pytest.mark.torch
def test_ranks_of_two_hosts_find_each_other_on_one_machine(training: Project) -> None:
    script = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "total", total.item())
dist.destroy_process_group()
"""
    training.write({"src/ddp.py": script})
    flags = ["--instances", "2", "--distribution", "torchrun", "--processes-per-host", "1"]
    done = training.trainshed("run", "src/ddp.py", *flags)
    assert done.status == 0, done.output
    assert sorted(done.stdout.splitlines()) == ["[algo-1:0] rank 0 of 2 total 3.0", "[algo-2:1] rank 1 of 2 total 3.0"]
