"""Jobs from Python, as in a notebook: in a process without a terminal, with threads, that may be interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import trainshed
from support import runner_scripts as scripts
from support.runner_project import LIMIT, TOOLKIT, Project, wait_until
from trainshed import runner
from trainshed.base.errors import JobError, TrainshedError
from trainshed.runner.api import JobFailed
from trainshed.runner.job.job import Job


@pytest.fixture
def folder(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", TOOLKIT)
    project.write({"count.py": scripts.COUNT, "bad.py": "raise KeyError('no')", "data/a.csv": "1"})
    monkeypatch.chdir(project.folder)
    return project.folder


@pytest.mark.spine
def test_a_job_runs_and_tells_how_it_went(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = runner.run(program="count.py", hyperparameters={"until": 4}, channels={"train": Path("data")})
    assert done.status["TrainingJobStatus"] == "Completed"
    assert done.exit_code == 0
    assert done.metrics == {"loss": 0.25}
    assert os.path.isfile(done.model)
    assert "metric loss=0.250000 step=4\n" in done.logs()
    printed = capsys.readouterr().out
    assert "metric loss=0.250000 step=4\n" in printed and f"completed    {done.name}" in printed
    assert [one.name for one in runner.runs()] == [done.name] == [runner.find().name]
    done.remove()
    assert not (folder / "runs").exists()


def test_a_job_file_and_fields_on_top_of_it(folder: Path) -> None:
    (folder / "job.yaml").write_text("program: count.py\nhyperparameters: {until: 9, lr: 1.10}\n")
    made = runner.make_job("job.yaml", hyperparameters={"until": 2}, name="mine")
    assert isinstance(made, Job)
    assert {name: str(value) for name, value in made.hyperparameters.items()} == {"until": "2", "lr": "1.10"}
    assert made.name == "mine"


def test_a_program_is_named_as_on_the_command_line(folder: Path) -> None:
    made = trainshed.make_job("count.py", hyperparameters={"until": 1})
    assert (made.name, made.program) == ("count", "count.py")
    done = trainshed.run("count.py", hyperparameters={"until": 1}, echo=False)
    assert done.metrics == {"loss": 1.0}
    assert [one.name for one in trainshed.runs()] == [done.name] == [trainshed.find().name]
    with pytest.raises(trainshed.JobFailed, match="KeyError: 'no'"):
        trainshed.run("bad.py", echo=False)


def test_everything_wrong_with_a_job_is_raised_at_once(folder: Path) -> None:
    with pytest.raises(JobError) as caught:
        runner.run(program="cuont.py", instances=0, hyperparameters={"a": object()})
    assert "a job cannot contain a value of type object" in str(caught.value)
    with pytest.raises(JobError) as caught:
        runner.run({"program": "cuont.py", "instances": 0})
    assert len(caught.value.problems) == 2
    assert "did you mean 'count.py'?" in str(caught.value.details)


def test_a_failure_is_raised_with_its_reason(folder: Path) -> None:
    with pytest.raises(JobFailed, match="KeyError: 'no'") as caught:
        runner.run(program="bad.py", echo=False)
    assert caught.value.training.exit_code == 1
    assert runner.run(program="bad.py", echo=False, check=False).status["TrainingJobStatus"] == "Failed"


def test_a_job_that_goes_on_is_watched_stopped_and_taken_up_again(folder: Path) -> None:
    training = runner.run(program="count.py", wait=False)
    wait_until(lambda: "step=3" in training.logs(), "it counts")
    assert training.running and training.exit_code is None
    assert "InProgress" in repr(training)
    training.stop()
    assert (training.running, training.exit_code) == (False, 143)
    with pytest.raises(TrainshedError, match="the code is missing"):
        (folder / "count.py").unlink()
        os.rename(folder, f"{folder}-away")
        try:
            runner.find(f"{folder}-away/runs/{training.name}").resume()
        finally:
            os.rename(f"{folder}-away", folder)


def test_jobs_run_from_threads(folder: Path) -> None:
    ended: list[int | None] = []

    def one() -> None:
        ended.append(runner.run(program="count.py", hyperparameters={"until": 2}, echo=False).exit_code)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert ended == [0, 0, 0]


def test_interrupting_the_wait_stops_the_job_and_it_may_save(folder: Path) -> None:
    script = (
        "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from trainshed import runner\n"
        "try:\n    runner.run(program='count.py')\n"
        "except KeyboardInterrupt:\n    print('stopped', runner.find().status['SecondaryStatus'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        while "step=3" not in (line := process.stdout.readline()):
            assert line
        process.send_signal(2)
        rest, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert rest.endswith("stopped Stopped\n")
    (run,) = (folder / "runs").iterdir()
    assert "saved at" in (run / "logs/algo-1.log").read_text()


def test_what_is_exported_is_documented_and_importing_it_is_cheap() -> None:
    for name in runner.__all__:
        assert getattr(runner, name).__doc__
    code = "import sys, json\nfrom trainshed import runner\nrunner.run\nprint(json.dumps([n for n in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": TOOLKIT}, capture_output=True, text=True, check=True
    )
    assert not {"torch", "numpy", "boto3", "yaml", "psutil"} & set(json.loads(done.stdout))
