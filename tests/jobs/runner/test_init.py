"""`trainshed init` writes a job file that runs as it is."""

from __future__ import annotations

import re

import pytest

from support.command_line import job_of
from support.runner_project import Project

SCRIPT = """\
import argparse, os
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--name", default="no")
parser.add_argument("--resume", action="store_true", default=False)
parser.add_argument("--optional")
parser.add_argument("positional", nargs="?", default="x")
print(os.environ["SM_CHANNEL_TRAIN"], os.environ.get("SM_CHANNEL_EXTRA"))
"""


@pytest.mark.spine
def test_an_empty_folder_becomes_a_job_that_trains(project: Project) -> None:
    done = project.command("init")
    assert done.status == 0, done.output
    assert sorted(path.name for path in project.folder.iterdir()) == [
        *(".dockerignore", ".job.schema.json", "Dockerfile", "job.yaml", "train.py")
    ]
    ran = project.trainshed("run", "job.yaml", "--hp", "epochs=2")
    assert ran.status == 0, ran.output
    assert len(re.findall(r"^metric loss=", ran.stdout, re.MULTILINE)) == 2
    assert "model.tar.gz  (1 file" in ran.stderr


def test_a_script_tells_of_its_hyperparameters_channels_and_ranks(project: Project) -> None:
    project.write({"src/fit.py": SCRIPT, "src/data/train/a.csv": "1", "src/requirements.txt": "numpy\n"})
    assert project.command("init", "src/fit.py").status == 0
    job = job_of([str(project.folder / "src/job.yaml")], {})
    assert {name: str(value) for name, value in job.hyperparameters.items()} == {"epochs": "3", "lr": "0.001", "name": "no"}
    assert [(one.name, one.path) for one in job.channels] == [("train", f"{project.folder}/src/data/train")]
    assert (job.program, job.distribution.kind) == ("fit.py", "torchrun")
    text = (project.folder / "src/job.yaml").read_text()
    assert "# channels: {extra: PATH}" in text
    dockerfile = (project.folder / "src/Dockerfile").read_text()
    assert "pip install --no-cache-dir -r requirements.txt" in dockerfile
    assert 'SAGEMAKER_PROGRAM="fit.py"' in dockerfile


def test_what_is_there_stays(project: Project) -> None:
    project.write({"train.py": "mine", "job.yaml": "mine", "Dockerfile": "mine"})
    done = project.command("init")
    assert "kept job.yaml, which exists" in done.stdout
    assert (project.folder / "job.yaml").read_text() == (project.folder / "train.py").read_text() == "mine"
    project.command("init", "--force")
    assert "program: train.py" in (project.folder / "job.yaml").read_text()
    assert (project.folder / "train.py").read_text() == "mine"


def test_a_script_that_is_not_there_is_one_line(project: Project) -> None:
    project.write({"train.py": ""})
    done = project.command("init", "trian.py")
    assert done.status == 1
    assert "trian.py does not exist: did you mean 'train.py'?" in done.stderr


def test_a_script_that_is_no_python_gets_a_job_file_all_the_same(project: Project) -> None:
    project.write({"train.sh": "echo hello", "broken.py": "def ("})
    for name in ("train.sh", "broken.py"):
        assert project.command("init", name, "--force").status == 0
        assert f"program: {name}" in (project.folder / "job.yaml").read_text()
