"""The examples do what their pages say: they train, leave a model, and resume after an interruption."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.paths import ROOT
from support.runner_project import Project, wait_until

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
EXAMPLES = ROOT / "examples"
# Example -> the packages it needs beside torch, the model it leaves, and a metric with the value it must get below.
JOBS = {
    "ddp": ((), "model.pt", ("loss", 0.35)),
    "trainer": (("transformers", "accelerate"), "model.safetensors", ("train_loss", 3.0)),
    "lightning": (("lightning",), "model.pt", ("loss", 0.5)),
    "pipeline": ((), "model.pt", ("loss", 0.5)),
}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A copy of the examples, as somebody has it who checked the project out."""
    made = Project(tmp_path / "project")
    shutil.copytree(EXAMPLES, made.folder / "examples")
    yield made
    made.end()


def metric(text: str, name: str) -> float:
    """The last value of a metric in a log."""
    return float(re.findall(rf"metric {name}=([-+.0-9e]+)", text)[-1])


def test_the_page_lists_every_example() -> None:
    listed = re.findall(r"^\| \[(\w+)\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", JOBS)
def test_an_example_trains_and_leaves_a_model(name: str, project: Project) -> None:
    packages, model, (measured, bound) = JOBS[name]
    for package in packages:
        pytest.importorskip(package)
    done = project.trainshed("run", f"examples/{name}/job.yaml", OMP_NUM_THREADS="1")

    assert done.status == 0, done.output
    assert (project.run / "algo-1/model" / model).stat().st_size > 0
    assert metric(done.output, measured) < bound


def test_the_ddp_example_resumes_where_it_was_interrupted(project: Project) -> None:
    process = project.start("run", "examples/ddp/job.yaml", "--hp", "epochs=4000", OMP_NUM_THREADS="1")
    log = lambda: "".join(path.read_text() for path in project.folder.glob("runs/*/logs/algo-1.log"))  # noqa: E731
    wait_until(lambda: "epoch=2 " in log() or process.poll() is not None, "the second epoch ends")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    (run,) = (project.folder / "runs").iterdir()
    before = re.findall(r"epoch=(\d+) step=(\d+)", log())
    done = project.trainshed("resume", str(run), "--hp", f"epochs={int(before[-1][0]) + 2}", OMP_NUM_THREADS="1")

    assert done.status == 0, done.output
    after = re.findall(r"epoch=(\d+) step=(\d+)", done.output)
    assert [int(epoch) for epoch, _ in after[:2]] == [int(before[-1][0]) + 1, int(before[-1][0]) + 2]
    assert (
        int(after[0][1]) - int(before[-1][1])
        == 4096 // yaml.safe_load((EXAMPLES / "ddp/job.yaml").read_text())["hyperparameters"]["batch-size"]
    )
    assert json.loads((run / "status.json").read_text())["TrainingJobStatus"] == "Completed"
