"""Jobs, archives and run folders of somebody who means ill: they run as they are, and take nothing else with them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from support.prey import picture
from support.runner_project import Project

pytestmark = pytest.mark.safety


def test_a_good_archive_is_run(prey: Project) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        info = tarfile.TarInfo("train.py")
        info.size = len(b"print('from the archive')")
        tar.addfile(info, io.BytesIO(b"print('from the archive')"))
    (prey.folder / "code.tar.gz").write_bytes(file.getvalue())
    prey.write({"job.yaml": "program: train.py\nsource_dir: code.tar.gz\n"})
    done = prey.trainshed("run", "job.yaml")
    assert (done.status, done.stdout) == (0, "from the archive\n"), done.output


@pytest.mark.spine
def test_metacharacters_of_the_shell_are_only_letters(prey: Project, tmp_path: Path) -> None:
    """Values that are allowed reach the script as they are, and nothing runs them on the way."""
    bad = "$(touch PWNED) `touch PWNED` ; touch PWNED | touch PWNED\n'\"&&"
    prey.write({"train.py": "import os, sys, json; print(json.dumps([sys.argv, os.environ['A']]))"})
    done = prey.trainshed("run", "train.py", "--hp", f"text={bad}", "--env", f"A={bad}", "--channel", "x=data")
    assert done.status == 0, done.output
    assert json.loads(done.stdout)[0][1:] == ["--text", bad]
    assert json.loads(done.stdout)[1] == bad
    assert not list(tmp_path.rglob("PWNED"))


def test_an_expression_that_never_ends_costs_the_metric_not_the_job(prey: Project) -> None:
    prey.write({
        "train.py": "print('y' + 'x' * 5000, flush=True)\nprint('metric loss=1', flush=True)",
        "job.yaml": "program: train.py\nmetric_definitions: {slow: '(x+x+)+y', good: 'loss=(.*)'}\n",
    })  # fmt: skip
    done = prey.trainshed("run", "job.yaml")
    assert done.status == 0, done.output
    assert "metric 'slow': its regular expression took seconds on one line and was dropped" in done.stderr
    assert "good 1" in done.stderr


# --- folders that look like runs --------------------------------------------------------------------------------------


def forged(prey: Project, **changes: object) -> Path:
    """A run's folder that somebody else has made, or changed."""
    done = prey.trainshed("run", "train.py", "--output", "forged")
    assert done.status == 0, done.output
    folder = prey.folder / "forged"
    status, about = (json.loads((folder / name).read_text()) for name in ("status.json", "job.json"))
    for path, value in changes.items():
        file, *fields = path.split("__")
        place = {"status": status, "about": about}[file]
        for field in fields[:-1]:
            place = place[field]
        place[fields[-1]] = value
    (folder / "status.json").write_text(json.dumps(status))
    (folder / "job.json").write_text(json.dumps(about))
    return folder


def test_a_process_is_never_taken_for_a_runner_it_is_not(prey: Project) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        runner = json.loads((forged(prey) / "status.json").read_text())["Trainshed"]["Runner"]
        (prey.folder / "forged").rename(prey.folder / "first")
        forged(
            prey,
            status__TrainingJobStatus="InProgress",
            status__Trainshed__Runner={**runner, "Pid": bystander.pid, "Started": 1},
        )
        done = prey.trainshed("stop", "./forged")
        assert done.status == 0, done.output
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize(
    "changes",
    [
        {"status__Trainshed__Folder": "/"},
        {"status__Trainshed__RunId": "--all"},
        {"about__id": "../../../precious", "status__Trainshed__RunId": "../../../precious"},
        {"about__job__checkpoints": "/nonexistent/../precious"},
        {"about__job__checkpoint_path": "../../precious"},
        {"about__job__instances": 10**9},
        {"status__TrainingJobName": "../../precious"},
        {"status__Trainshed": "a text"},
        {"status__SecondaryStatusTransitions": "a text"},
        {"about__job": []},
        {"status__TrainingJobStatus": "InProgress", "about__job__hyperparameters": 7},
    ],
)
def test_a_forged_run_takes_nothing_else_with_it(prey: Project, tmp_path: Path, changes: dict[str, object]) -> None:
    folder = forged(prey, **changes)
    for command in ("status", "stop", "clone", "logs"):
        done = (prey.trainshed if command == "stop" else prey.command)(command, "./forged")
        assert "Traceback" not in done.stderr and "trainshed itself failed" not in done.stderr, done.stderr
    prey.trainshed("rm", "--force", "./forged")
    left = picture(tmp_path)
    assert left["project/precious/thesis.tex"] == b"dear"
    assert left["project/train.py"] == b"print('ran')"
    assert not (folder / "status.json").exists()


def test_a_link_in_a_run_is_removed_and_not_followed(prey: Project) -> None:
    folder = forged(prey)
    (folder / "attempts").symlink_to(prey.folder / "precious")
    (folder / "staged").mkdir()
    (folder / "staged/away").symlink_to(prey.folder / "precious")
    assert prey.trainshed("rm", "./forged").status == 0
    assert (prey.folder / "precious/thesis.tex").read_text() == "dear"
