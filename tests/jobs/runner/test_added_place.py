"""A package adds a place: `examples/plugins/place`, installed as a user installs it, runs, follows and stops jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from support.plugins import search_path
from support.runner_project import Project, wait_until

JOB = """\
import os, sys
print("metric loss=0.5 step=1", flush=True)
open(os.environ["SM_MODEL_DIR"] + "/weights", "w").close()
print("nice", os.nice(0), flush=True)
"""
NAP = """\
import time
print("napping", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a command for which the example's package is installed."""
    return {"PYTHONPATH": search_path("place", tmp_path_factory.mktemp("place"))}


def status(project: Project) -> Any:
    return json.loads((project.run / "status.json").read_text())["TrainingJobStatus"]


def napping(project: Project) -> bool:
    log = project.run / "logs/algo-1.log"
    return log.exists() and "napping" in log.read_text()


def test_python_names_the_place_as_the_command_line_does(project: Project, there: dict[str, str]) -> None:
    project.write({"train.py": JOB})
    code = """
import os
from trainshed import runner
from trainshed.base.errors import TrainshedError
try:
    runner.run(program="train.py", on="nohup_queeu")
except TrainshedError as error:
    print(error)
done = runner.run(program="train.py", on="nohup_queue", nohup_queue={"nice": 5}, echo=False)
print(done.status["TrainingJobStatus"], f"nice {min(19, os.nice(0) + 5)}" in done.logs())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project.folder, env=project.environ(**there), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "there is no place 'nohup_queeu' here\nCompleted True\n"


def test_a_job_runs_at_an_added_place(project: Project, there: dict[str, str]) -> None:
    project.write({"train.py": JOB, "job.yaml": "program: train.py\nnohup_queue: {nice: 5}\n"})
    done = project.trainshed("run", "job.yaml", "--on", "nohup_queue", **there)

    assert done.status == 0, done.stderr
    assert f"nice {min(19, os.nice(0) + 5)}" in done.stdout and "loss" in done.stderr
    assert status(project) == "Completed" and (project.run / "output/model.tar.gz").exists()
    assert 'nohup_queue:\n  "nice": 5' in project.trainshed("clone", project.run.name, **there).stdout
    assert project.trainshed("rm", project.run.name, **there).status == 0 and not list(project.folder.glob("runs/*"))


@pytest.mark.spine
def test_a_job_that_nobody_follows_is_stopped_and_resumed(project: Project, there: dict[str, str]) -> None:
    project.write({"nap.py": NAP})
    done = project.trainshed("run", "nap.py", "--on", "nohup_queue", "--detach", **there)
    assert done.status == 0, done.stderr
    wait_until(lambda: napping(project), "the job")

    assert "of the nohup queue" in project.trainshed("ps", **there).stdout
    stopped = project.trainshed("stop", project.run.name, **there)
    assert stopped.status == 0 and status(project) == "Stopped", stopped.stderr

    (project.run / "logs/algo-1.log").unlink()
    again = project.start("resume", project.run.name, **there)
    wait_until(lambda: napping(project), "the job again")
    again.terminate()
    _, said = again.communicate(timeout=60)
    assert again.returncode == 143 and status(project) == "Stopped", said


def test_what_the_place_cannot_do_is_refused_before_anything_starts(project: Project, there: dict[str, str]) -> None:
    project.write({"train.py": JOB, "job.yaml": "program: train.py\nnohup_queue: {nise: 5}\n"})
    wrong = project.trainshed("run", "job.yaml", "--on", "nohup_queue", "--instances", "2", "--detach", **there)

    assert wrong.status == 2 and not (project.folder / "runs").exists()
    assert "nohup_queue.nise: is not a known field" in wrong.stderr
    assert "instances: must be 1 in the nohup queue" in wrong.stderr


def test_a_run_whose_package_is_gone_is_left_alone(project: Project, there: dict[str, str]) -> None:
    project.write({"nap.py": NAP})
    assert project.trainshed("run", "nap.py", "--on", "nohup_queue", "--detach", **there).status == 0
    wait_until(lambda: napping(project), "the job")

    assert "on nohup_queue, which no package here adds" in project.command("ps").stdout
    stopped = project.trainshed("stop", project.run.name)
    assert stopped.status != 0 and "nothing runs jobs at nohup_queue" in stopped.stderr
    assert project.trainshed("stop", project.run.name, "--kill", **there).status == 0
