"""Incremental training: a run that goes on from the model of another one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.runner_project import Project

FIRST = """\
import os
with open(os.environ["SM_MODEL_DIR"] + "/weights", "w") as file:
    file.write("41")
"""
SECOND = """\
import os
from trainshed.data import previous_model
with open(previous_model() + "/weights") as file:
    value = int(file.read()) + 1
with open(os.environ["SM_MODEL_DIR"] + "/weights", "w") as file:
    file.write(str(value))
print("went on from", previous_model(), flush=True)
"""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has made a model."""
    project = Project(tmp_path_factory.mktemp("project"))
    project.write({"src/first.py": FIRST})
    done = project.trainshed("run", "src/first.py", "--name", "first", "--output", "made")
    assert done.status == 0, done.output
    return project.folder / "made"


@pytest.mark.spine
def test_a_run_goes_on_from_the_model_of_another(project: Project, first: Path) -> None:
    project.write({"src/second.py": SECOND})
    parent = json.loads((first / "status.json").read_text())

    done = project.trainshed(
        "run", "src/second.py", "--from-run", str(first), "--instances", "2", "--distribution", "torchrun",
        "--processes-per-host", "2", "--output", "second",
    )  # fmt: skip

    assert done.status == 0, done.output
    second = project.folder / "second"
    assert (second / "model/weights").read_text() == "42"
    lines = {line.rpartition("went on from ")[2] for line in done.output.splitlines() if "went on from" in line}
    assert len(lines) == 2 and not any(Path(line).exists() for line in lines), "one a host, which train removes"

    told = json.loads((second / "status.json").read_text())["Trainshed"]
    archives = {Path(one["Path"]).name: one["Sha256"] for one in parent["Trainshed"]["Archives"]}
    name, run_id = parent["TrainingJobName"], parent["Trainshed"]["RunId"]
    assert told["FromRun"] == {"Run": name, "RunId": run_id, "ModelSha256": archives["model.tar.gz"]}
    record = json.loads((second / "algo-2/output/data/run/algo-2.json").read_text())
    assert record["job"]["settings"]["from_run"] == name and record["fingerprints"]["model"]["files"] == 1
    assert f"  from       the model of {name}\n" in project.command("status", str(second)).stdout

    copy = project.command("clone", str(second)).stdout
    assert f'from_run: "{first}"\n' in copy and "model:" not in copy
    project.write({"again.yaml": copy})
    assert "algo-1" in project.command("run", "again.yaml", "--dry-run").stdout


def test_what_cannot_be_gone_on_from_is_said_before_anything_starts(project: Project, first: Path) -> None:
    project.write({"src/second.py": SECOND, "data/model.bin": "x"})
    shutil.copytree(first, project.folder / "runs/other")
    empty = shutil.copytree(first, project.folder / "empty")
    (empty / "output/model.tar.gz").unlink()
    linked = shutil.copytree(first, project.folder / "linked")
    (linked / "output/model.tar.gz").unlink()
    (linked / "output/model.tar.gz").symlink_to("/etc/passwd")
    running = shutil.copytree(first, project.folder / "running")
    status = json.loads((running / "status.json").read_text())
    status |= {"TrainingJobStatus": "InProgress", "SecondaryStatus": "Training"}
    status["Trainshed"] |= {"SlurmJobId": 7}
    for name in ("FolderId", "Folder"):
        status["Trainshed"].pop(name, None)
    (running / "status.json").write_text(json.dumps(status))
    about = json.loads((running / "job.json").read_text())
    (running / "job.json").write_text(json.dumps({k: v for k, v in about.items() if k not in ("FolderId", "Folder")}))

    for arguments, words in (
        (("--from-run", "gone"), "there is no run 'gone'"),
        (("--from-run", "./gone"), "is not a run's folder"),
        (("--from-run", str(empty)), "has no model: "),
        (("--from-run", str(linked)), "has no model: "),
        (("--from-run", str(running)), "has not ended: there is no model yet"),
        (("--from-run", str(first), "--channel", "model=data"), "the job has a channel 'model' as well"),
    ):
        done = project.command("run", "src/second.py", *arguments)
        assert done.status != 0 and words in done.stderr, (arguments, done.output)
    assert [path.name for path in (project.folder / "runs").iterdir()] == ["other"]
    exported = project.command("export", "sagemaker", "src/second.py", "--from-run", str(first))
    assert exported.status != 0 and "channels.model" in exported.stderr
