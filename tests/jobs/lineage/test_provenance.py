"""What a run notes about where it comes from: whole jobs, read back as other commands read it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
from pathlib import Path

import pytest

from support.runner_project import Project
from trainshed.machine.fingerprint import of_folder
from trainshed.runner.state.provenance import code_files, provenance_of
from trainshed.runner.state.stored import load

TRAIN = """\
import os, pathlib
pathlib.Path("helper.py").write_text("# changed by the run itself")
pathlib.Path(os.environ["SM_MODEL_DIR"], "weights").write_text("7")
pathlib.Path("left_behind.txt").write_text("x")
"""
JOB = "program: train.py\nsource_dir: src\n"
ONCE = """\
import os
if not os.path.exists("second"):
    open({!r}, "w").close()
    raise SystemExit(3)
"""
AGAIN = "import os\nassert os.listdir(os.environ['SM_CHANNEL_MODEL']) == ['model.tar.gz']\n"


def run(project: Project, name: str, *options: str, job: str = "job.yaml") -> Path:
    done = project.trainshed("run", job, "--output", name, *options)
    assert done.status == 0, done.output
    return project.folder / name


@pytest.mark.spine
def test_a_run_notes_code_git_packages_parents_and_model(project: Project) -> None:
    files = {"src/train.py": TRAIN, "src/helper.py": "# first\n", "src/again.py": AGAIN}
    project.write({**files, "job.yaml": JOB, "again.yaml": JOB.replace("train.py", "again.py")})
    (project.folder / "src/linked.py").symlink_to("helper.py")
    git = ["git", "-C", os.fspath(project.folder), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "src"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)

    first = run(project, "first")
    project.write({"src/helper.py": "# second\n"})
    second = run(project, "second", "--from-run", "./first", job="again.yaml")

    told, later = provenance_of(load(os.fspath(first))), provenance_of(load(os.fspath(second)))
    files = code_files(load(os.fspath(first)))
    assert sorted(files) == ["again.py", "helper.py", "linked.py", "train.py"]
    assert files["linked.py"] == files["helper.py"]
    assert files["helper.py"]["sha256"] == hashlib.sha256(b"# first\n").hexdigest(), "as it was at the start"
    assert told.code["digest"].startswith("whole:") and told.code["digest"] != later.code["digest"]
    assert told.code["kept"] == "algo-1/code" and told.code["source"] == os.fspath(project.folder / "src")
    assert len(told.git["commit"]) == 40 and told.git["dirty"] is False
    assert later.git["commit"] == told.git["commit"] and later.git["changed"] == ["src/helper.py"]
    assert told.packages["psutil"] == importlib.metadata.version("psutil")
    (parent,) = later.parents
    assert parent["kind"] == "model" and parent["folder"] == os.fspath(first) and parent["id"] == load(os.fspath(first)).id
    assert told.model["files"]["weights"]["sha256"] == hashlib.sha256(b"7").hexdigest()
    # The channel of the second run shows the first one's model: by that they are linked, wherever the folders are.
    assert set(later.data_digests["model"]) <= set(told.model["digests"])
    assert of_folder(os.fspath(first / "model")).digest in told.model["digests"]

    assert project.trainshed("rm", "./first").status == 0
    assert not first.exists(), "what a run notes is removed with it"


def test_a_later_attempt_that_runs_other_code_is_told(project: Project) -> None:
    second = os.fspath(project.folder / "src/second")
    project.write({
        "src/train.py": ONCE.format(second),
        "job.yaml": "program: train.py\nsource_dir: src\nretries: 1\n",
    })  # fmt: skip

    told = provenance_of(load(os.fspath(run(project, "first"))))

    assert sorted(code_files(load(os.fspath(project.folder / "first")))) == ["second", "train.py"]
    assert len(told.code["earlier"]) == 1 and told.code["digest"] not in told.code["earlier"]
    assert told.git == {} and told.model == {} and told.parents == ()
