"""Success means that the result is there: what a job says of itself when its results cannot be packed or sent."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from support.obstacles import small_disk
from support.runner_project import Project

# Leaves noise, which does not shrink, and succeeds whether or not there was room for all of it.
NOISE = """\
import os
with open(os.environ["SM_MODEL_DIR"] + "/noise", "wb", buffering=0) as file:
    try:
        for _ in range(int(os.environ["KIBIBYTES"])):
            file.write(os.urandom(1024))
    except OSError as error:
        print("the script goes on after:", error.strerror)
"""


def status_of(run: Path) -> dict:  # type: ignore[type-arg]
    return dict(json.loads((run / "status.json").read_text()))


@pytest.mark.safety
def test_a_model_that_cannot_be_packed_fails_the_job_and_is_kept(project: Project, tmp_path: Path) -> None:
    project.write({"noise.py": NOISE})
    with small_disk(tmp_path / "disk", 6) as disk:
        done = project.trainshed("run", "noise.py", "--output", f"{disk}/run", KIBIBYTES="4096")

        assert done.status == 1, done.output
        assert "wrote nothing" not in done.stderr and "Reporting training SUCCESS" in done.stderr
        assert "failed " in done.stderr and "not packed; kept in" in done.stderr
        assert "model.tar.gz cannot be written: No space left on device (4.2 MB of files" in done.stderr
        assert f"hint: nothing is lost: the files are in {disk}/run/model" in done.stderr
        assert sorted(os.listdir(disk / "run/output")) == ["output.tar.gz"]
        assert (disk / "run/model/noise").stat().st_size == 4096 * 1024
        status = status_of(disk / "run")
        assert (status["TrainingJobStatus"], status["SecondaryStatus"]) == ("Failed", "Failed")
        assert "No space left on device" in status["FailureReason"] and "ModelArtifacts" not in status
        assert status["Trainshed"]["ExitCode"] == 1

        subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
        clone = project.command("clone", f"{disk}/run")
        assert "program: " in clone.stdout and clone.status == 0
        again = project.trainshed("resume", f"{disk}/run", KIBIBYTES="4096")
        assert again.status == 0, again.output
        assert (disk / "run/attempts/1/model/noise").stat().st_size == 4096 * 1024, "the first results are still there"
        status = status_of(disk / "run")
        (model, output) = status["Trainshed"]["Archives"]
        data = (disk / "run/output/model.tar.gz").read_bytes()
        assert model["Sha256"] == hashlib.sha256(data).hexdigest() and model["Sha256"][:12] in again.stderr
        assert (model["Files"], model["Bytes"]) == (1, 4096 * 1024) and "Sha256" in output
        assert status["ModelArtifacts"] == {"S3ModelArtifacts": f"file://{disk}/run/output/model.tar.gz"}


@pytest.mark.safety
def test_a_disk_without_a_byte_left_still_takes_how_the_job_ended(project: Project, tmp_path: Path) -> None:
    project.write({"noise.py": NOISE})
    with small_disk(tmp_path / "disk", 4) as disk:
        done = project.trainshed("run", "noise.py", "--output", f"{disk}/run", KIBIBYTES="99999")

        assert "the script goes on after: No space left on device" in done.stdout
        assert done.status == 1, done.output
        assert "trainshed itself failed" not in done.output
        assert status_of(disk / "run")["TrainingJobStatus"] == "Failed"
        assert (disk / "run/model/noise").stat().st_size > 1 << 20
        assert not list(disk.rglob("*.part"))


def test_a_run_that_has_no_room_for_its_first_files_is_one_line(project: Project, tmp_path: Path) -> None:
    project.write({"noise.py": NOISE})
    with small_disk(tmp_path / "disk", 1) as disk:
        (disk / "filler").write_bytes(bytes(1 << 20))
        done = project.trainshed("run", "noise.py", "--output", f"{disk}/run", KIBIBYTES="1")
        assert done.status == 1
        assert "No space left on device" in done.stderr and "trainshed itself failed" not in done.stderr, done.stderr


def test_a_model_folder_that_the_script_has_made_anew_is_packed(project: Project) -> None:
    project.write(
        {
            "anew.py": "import os\nfolder = os.environ['SM_MODEL_DIR']\nos.unlink(folder)\nos.mkdir(folder)\n"
            "open(folder + '/weights', 'w').write('w')\nos.mkfifo(folder + '/pipe')\n"
        }
    )
    done = project.trainshed("run", "anew.py")
    assert done.status == 0, done.output
    assert "wrote nothing" not in done.stderr and "pipe, a pipe" in done.stderr
    with tarfile.open(project.run / "output/model.tar.gz") as tar:
        assert tar.getnames() == ["weights"]


def test_an_empty_model_is_said_and_is_no_failure(project: Project) -> None:
    project.write({"nothing.py": "print('done')"})
    done = project.trainshed("run", "nothing.py")
    assert done.status == 0
    assert "the script wrote nothing to SM_MODEL_DIR" in done.stderr
