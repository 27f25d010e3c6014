"""A function of a notebook as a job's program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import trainshed
from support.runner_project import TOOLKIT, Project
from trainshed.base.errors import JobError
from trainshed.runner.files.function_program import KEPT_SECONDS, as_program

NOTEBOOK = """\
import os
import trainshed

SCALE = 3

def scaled(value):
    return SCALE * value

def train(lr, steps=2, **rest):
    for step in range(steps):
        print(f"metric loss={scaled(lr):.6f} step={step}", flush=True)
    with open(os.path.join(os.environ["SM_MODEL_DIR"], os.environ.get("RANK", "0")), "w") as file:
        file.write(repr((lr, steps, rest)))

hyperparameters = {"lr": 0.5, "steps": 1, "name": "a b", "flags": [1, True]}
done = trainshed.run(train, hyperparameters=hyperparameters, echo=False)
print(done.name.split("-")[0], done.status["TrainingJobStatus"], done.metrics)
ranks = {"kind": "torchrun", "processes_per_host": 2}
two = trainshed.run(lambda lr: train(lr), hyperparameters={"lr": 1.0}, distribution=ranks, echo=False)
print(two.name.split("-")[0], two.logs().count("metric loss=3.000000 step=0"))
"""


@pytest.fixture
def folder(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", TOOLKIT)
    monkeypatch.chdir(project.folder)
    return project.folder


def test_functions_of_a_notebook_run_with_their_arguments(project: Project, folder: Path) -> None:
    pytest.importorskip("cloudpickle")
    done = subprocess.run(
        [sys.executable, "-"], input=NOTEBOOK, cwd=folder, env=project.environ(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "train Completed {'loss': 1.5}\nfunction 2\n"


def train(rate: float) -> None:
    raise KeyError(f"at {rate}")


def test_a_function_of_a_module_that_the_job_has_not_got_fails_with_its_own_reason(folder: Path) -> None:
    pytest.importorskip("cloudpickle")
    with pytest.raises(trainshed.JobFailed, match=r"KeyError: 'at 0\.5'"):
        trainshed.run(train, hyperparameters={"rate": 0.5}, echo=False)


def test_what_cannot_be_a_program_is_refused_before_a_job_starts(folder: Path) -> None:
    pytest.importorskip("cloudpickle")
    with pytest.raises(JobError, match="are the arguments of train: got an unexpected keyword argument 'rates'"):
        trainshed.run(train, hyperparameters={"rate": 1, "rates": 2})
    with pytest.raises(JobError, match="missing a required argument: 'rate'"):
        trainshed.run(train)
    lock = threading.Lock()
    with pytest.raises(JobError, match=r"function: cannot be pickled: .*lock"):
        trainshed.run(lambda: lock)
    assert not (folder / "runs").exists()


def test_another_python_is_told_which_one_wrote_the_function(folder: Path) -> None:
    pytest.importorskip("cloudpickle")
    script = Path(as_program(train, {"rate": 1}, os.environ))
    pickled = script.with_name("function.pickle")
    pickled.write_bytes(b"3.1\n" + pickled.read_bytes().partition(b"\n")[2])
    done = subprocess.run([sys.executable, script], env={"SM_HPS": json.dumps({"rate": 1})}, capture_output=True, text=True)
    assert "the function was written by Python 3.1, which Python" in done.stderr


def test_programs_of_functions_are_forgotten_after_a_day(folder: Path) -> None:
    pytest.importorskip("cloudpickle")
    old = Path(as_program(train, {"rate": 1}, os.environ)).parent
    os.utime(old, (0, os.stat(old).st_mtime - KEPT_SECONDS - 1))
    new = Path(as_program(lambda: None, {}, os.environ)).parent
    assert [one.name for one in new.parent.iterdir()] == [new.name]
