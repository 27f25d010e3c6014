"""`trainshed profile` on jobs that run: a rank's operators, a trace, or a word why there is none."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.paths import TOOLKIT
from support.runner_project import Project, project  # noqa: F401 (a fixture)

# Trains until somebody wants it to stop.
SCRIPT = """\
import os, time, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
stop = os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], "stop")
while not os.path.exists(stop):
    for _ in range(int(os.environ["RANK"]) + 1):
        model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
"""


# As Amazon's SDK asks for the steps 2 to 5.
ASKED = {
    "ProfilingParameters": {
        "ProfilerEnabled": "True",
        "LocalPath": "/opt/ml/output/elsewhere",
        "DetailedProfilingConfig": '{"StartStep": 2, "NumSteps": 4}',
        "PythonProfilingConfig": '{"StartStep": 9, "NumSteps": 3, "ProfilerName": "cprofile"}',
    }
}


def calls_of(trace: Path, name: str) -> int:
    """How often an operator stands in a trace."""
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return sum(event.get("name") == name and event.get("ph") == "X" for event in events)


def profile(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainshed", "profile", *arguments]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": str(TOOLKIT)}, capture_output=True, text=True)


@pytest.mark.spine
@pytest.mark.torch
def test_a_rank_of_a_running_job_is_recorded_and_the_job_goes_on(job_tree: Any) -> None:
    job_tree.code("train.py", SCRIPT)
    several = {"trainshed_distribution": "torchrun", "trainshed_processes_per_host": "2"}
    asked = json.loads(json.dumps(ASKED).replace("/opt/ml", str(job_tree.base)))
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py", **several}, profiler=asked)
    command = [sys.executable, "-m", "trainshed.container.main"]
    with subprocess.Popen(command, env=job_tree.environ(), stderr=subprocess.PIPE, text=True) as train:
        try:
            done = profile(str(job_tree.base), "--rank", "1", "--steps", "3")
            again = profile(str(job_tree.base), "--steps", "1")
            absent = profile(str(job_tree.base), "--rank", "7", "--timeout", "3")
        finally:
            (job_tree.base / "output/data").mkdir(parents=True, exist_ok=True)
            (job_tree.base / "output/data/stop").touch()
            _, errors = train.communicate()

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("3 steps in ") and "Optimizer.step#SGD.step" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.endswith(("aten::addmm", "aten::linear"))][:1]
    assert line.split()[2] == "2", "calls in a step of rank 1"
    trace = Path(done.stdout.split("trace: ")[1].split()[0])
    assert calls_of(trace, "aten::addmm") == 2 * 3
    assert again.returncode == 0 and again.stdout.startswith("1 steps in ")
    assert absent.returncode != 0 and absent.stderr == "trainshed: there is no rank 7: the job's ranks are 0 to 1\n"
    assert train.returncode == 0 and "not measured any more" not in errors
    assert os.path.dirname(trace) == f"{job_tree.base}/output/elsewhere/traces"
    # What profilerconfig.json asks for, of both ranks, and what was asked for meanwhile; each with its table.
    planned = ["2.rank-0.json", "2.rank-0.trace.json.gz", "2.rank-1.json", "2.rank-1.trace.json.gz"]
    assert set(planned) <= set(os.listdir(trace.parent)) and len(os.listdir(trace.parent)) == 8
    assert calls_of(trace.parent / planned[3], "aten::addmm") == 2 * 4, "two backwards in each of four steps"
    assert "profilerconfig.json: PythonProfilingConfig is not supported" in errors
    assert "trainshed: profile: " in errors, "the verdict comes with it"


def test_a_run_that_is_over_or_does_not_measure_its_steps_is_refused(project: Project) -> None:  # noqa: F811
    project.write({"train.sh": 'while [ ! -e "$GO" ]; do sleep 0.1; done\n'})
    go = project.folder / "go"
    run = project.start("run", "train.sh", "--output", "runs/one", GO=str(go))
    try:
        while not (project.folder / "runs/one/status.json").exists():
            assert run.poll() is None
        plain = project.trainshed("profile", "runs/one")
    finally:
        go.touch()
        run.communicate()
    over = project.trainshed("profile", "runs/one")

    assert plain.status != 0 and "does not measure its steps, so nothing in it can record them" in plain.stderr
    assert "--profile auto" in plain.stderr
    assert over.status != 0 and "is not running" in over.stderr
