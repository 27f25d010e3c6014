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

from support.extras import needs
from support.finished import Finished
from support.paths import ROOT
from support.runner_project import Project, wait_until

pytestmark = pytest.mark.torch
EXAMPLES = ROOT / "examples"
# Example -> the packages it needs beside torch, the model it leaves, and a metric with the value it must get below.
JOBS = {
    "ddp": ((), "model.pt", ("loss", 0.35)),
    "trainer": (("transformers", "accelerate"), "model.safetensors", ("train_loss", 3.0)),
    "lightning": (("lightning",), "model.pt", ("loss", 0.5)),
    "pipeline": ((), "model.pt", ("loss", 0.5)),
    "parameter_server": ((), "model.pt", ("loss", 0.5)),
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


def trained(done: Finished, project: Project, name: str) -> None:
    """The example has ended well, has left its model, and has learned."""
    _, model, (measured, bound) = JOBS[name]
    assert done.status == 0, done.output
    assert (project.run / "algo-1/model" / model).stat().st_size > 0
    assert metric(done.output, measured) < bound


# Importing these libraries takes more than seven seconds a rank; that they train on ranks, others show, too.
ONE_RANK = ("--processes-per-host", "1")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pipeline", ()),
        ("trainer", ONE_RANK),
        pytest.param("lightning", ONE_RANK, marks=pytest.mark.spine),
        pytest.param("trainer", (), marks=pytest.mark.heavy),
        pytest.param("lightning", (), marks=pytest.mark.heavy),
    ],
)
def test_an_example_trains_leaves_a_model_and_fires_no_rule(name: str, options: tuple[str, ...], project: Project) -> None:
    needs(*JOBS[name][0])
    options += ("--rules", "all", "--hp", "trainshed_tensor_steps=5")
    trained(project.trainshed("run", f"examples/{name}/job.yaml", *options, OMP_NUM_THREADS="1"), project, name)
    output = project.run / "algo-1/output"
    assert list((output / "tensors").iterdir()), "the rules have seen tensors"
    assert [path.read_text() for path in output.glob("rules/*")] == []


def test_the_ddp_example_resumes_where_it_was_interrupted_trains_and_leaves_a_model(project: Project) -> None:
    job = yaml.safe_load((EXAMPLES / "ddp/job.yaml").read_text())["hyperparameters"]
    process = project.start("run", "examples/ddp/job.yaml", "--hp", "epochs=4000", OMP_NUM_THREADS="1")
    log = lambda: "".join(path.read_text() for path in project.folder.glob("runs/*/logs/algo-1.log"))  # noqa: E731
    wait_until(lambda: "epoch=2 " in log() or process.poll() is not None, "the second epoch ends")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    before = re.findall(r"epoch=(\d+) step=(\d+)", log())
    last = max(int(before[-1][0]) + 2, 12)  # by then it has learned; the page's 40 make it thorough
    done = project.trainshed("resume", str(project.run), "--hp", f"epochs={last}", OMP_NUM_THREADS="1")

    trained(done, project, "ddp")
    after = re.findall(r"epoch=(\d+) step=(\d+)", done.output)
    assert [int(epoch) for epoch, _ in after[:2]] == [int(before[-1][0]) + 1, int(before[-1][0]) + 2]
    assert int(after[0][1]) - int(before[-1][1]) == 4096 // job["batch-size"]
    assert json.loads((project.run / "status.json").read_text())["TrainingJobStatus"] == "Completed"


def test_the_parameter_server_example_goes_on_with_what_its_servers_held(project: Project) -> None:
    process = project.start("run", "examples/parameter_server/job.yaml", "--hp", "epochs=4000", OMP_NUM_THREADS="1")
    log = lambda: "".join(path.read_text() for path in project.folder.glob("runs/*/logs/algo-1.log"))  # noqa: E731
    wait_until(lambda: "epoch=2\n" in log() or process.poll() is not None, "the second epoch ends")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    before = int(re.findall(r"epoch=(\d+)", log())[-1])
    done = project.trainshed("resume", str(project.run), "--hp", f"epochs={max(before + 2, 15)}", OMP_NUM_THREADS="1")

    trained(done, project, "parameter_server")
    assert int(re.findall(r"epoch=(\d+)", done.output)[0]) == before + 1
