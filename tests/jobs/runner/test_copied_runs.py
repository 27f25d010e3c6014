"""Folders that say they are a run of ours and are not: copies, links, forgeries. Nothing is done to a run through them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import runner_scripts as scripts
from support.runner_project import LIMIT, Project, wait_until
from trainshed.runner.acting.leftovers import processes_of
from trainshed.runner.state import identity

pytestmark = pytest.mark.safety


@pytest.fixture
def counting(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a script that counts for ever, and an index of runs of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return project.write({"count.py": scripts.COUNT})


def status(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "status.json").read_text()))


def start(project: Project) -> Path:
    """A run in the background that counts; its folder."""
    done = project.trainshed("run", "count.py", "--detach")
    assert done.status == 0, done.output
    folder = project.folder / "runs" / done.stdout.strip()
    wait_until(lambda: (folder / "checkpoints/step-algo-1").exists(), "the script counts")
    log = folder / "logs/algo-1.log"
    wait_until(lambda: log.exists() and "starting at" in log.read_text(), "the runner has read what it said")
    return folder


def resume(project: Project, folder: Path, **environ: str) -> None:
    done = project.trainshed("resume", f"./runs/{folder.name}", "--detach", **environ)
    assert done.status == 0, done.output
    wait_until(lambda: status(folder)["SecondaryStatus"] == "Training", "it trains again")
    wait_until(lambda: processes_of(status(folder)["Trainshed"]["RunId"]), "its hosts are there")


def assert_lives(folder: Path) -> None:
    """The run goes on: the runner and its hosts, and nobody has asked it to stop."""
    told = status(folder)
    assert told["SecondaryStatus"] == "Training", told["SecondaryStatus"]
    assert identity.is_alive(told["Trainshed"]["Runner"]) is True
    assert processes_of(told["Trainshed"]["RunId"])


def copied(folder: Path, name: str) -> Path:
    """What `cp -a` makes of a run's folder."""
    return Path(shutil.copytree(folder, folder.with_name(name), symlinks=True))


@pytest.mark.parametrize("while_it_ran", [False, True])
def test_nothing_done_with_a_copy_touches_the_run_it_was_made_of(counting: Project, while_it_ran: bool) -> None:
    first = start(counting)
    if not while_it_ran:
        assert counting.trainshed("stop", first.name).status == 0
    copy = copied(first, "copy")
    if not while_it_ran:
        resume(counting, first)
    for command in (["rm", "--force"], ["rm"], ["stop", "--kill"], ["stop"]):
        done = counting.trainshed(*command, "./runs/copy")
        assert "is a copy of a run" in done.stderr, (command, done.output)
        assert done.status == 1
        assert_lives(first)
    assert (copy / "job.json").exists(), "what is in a copy is not ours to delete"
    assert counting.trainshed("attach", "./runs/copy").status is not None, "it comes to an end"
    assert "starting at" in counting.trainshed("logs", "--follow", "./runs/copy").stdout
    assert "a copy" in counting.command("status", "./runs/copy").stdout
    assert first.name in counting.command("ps").stdout
    assert_lives(first)
    assert counting.trainshed("rm", "--force", str(first)).status == 0, "and the run itself can be removed"
    assert not first.exists()
    assert not (counting.folder / "runs").exists() or sorted(os.listdir(counting.folder / "runs")) == ["copy"]


@pytest.mark.spine
def test_a_resumed_copy_is_a_run_of_its_own(counting: Project) -> None:
    first = start(counting)
    copy = copied(first, "copy")
    resume(counting, copy)
    one, two = status(first), status(copy)
    assert two["Trainshed"]["RunId"] != one["Trainshed"]["RunId"]
    assert two["TrainingJobName"] == "copy"
    assert counting.trainshed("rm", "--force", "copy").status == 0
    assert_lives(first)
    assert not copy.exists()


def test_a_folder_that_was_moved_is_still_the_run(counting: Project) -> None:
    first = start(counting)
    assert counting.trainshed("stop").status == 0
    first.rename(counting.folder / "archive")
    done = counting.trainshed("rm", "./archive")
    assert done.status == 0, done.output
    assert not (counting.folder / "archive").exists()


def test_rm_of_a_link_removes_nothing_behind_it(counting: Project) -> None:
    first = start(counting)
    assert counting.trainshed("stop").status == 0
    counting.write({"proj/model/mine.bin": "dear", "proj/checkpoints/mine.pt": "dear", "proj/logs/mine.log": "dear"})
    for name in ("status.json", "job.json"):
        shutil.copy(first / name, counting.folder / "proj" / name)
    (counting.folder / "runs/x").symlink_to("../proj")
    for path in ("./runs/x", "./runs/x/", "./proj"):
        done = counting.trainshed("rm", "--force", path)
        assert done.status == 1, done.output
        assert "is a link to" in done.stderr or "is a copy of a run" in done.stderr
    (counting.folder / "runs/y").symlink_to(first.name)
    done = counting.trainshed("rm", "./runs/y")
    assert (done.status, "is a link to" in done.stderr) == (1, True), done.output
    assert {path.name for path in (counting.folder / "proj").rglob("mine.*")} == {"mine.bin", "mine.pt", "mine.log"}
    assert (first / "status.json").exists()


@pytest.mark.spine
def test_rm_does_not_delete_what_only_looks_like_a_run(counting: Project) -> None:
    """A status.json that came with somebody's repository: the model and the logs beside it are the user's."""
    counting.write({"proj/model/mine.bin": "dear", "proj/status.json": '{"TrainingJobStatus": "Completed"}'})
    done = counting.trainshed("rm", "./proj")
    assert done.status == 1, done.output
    assert "was not made by trainshed here" in done.stderr
    assert (counting.folder / "proj/model/mine.bin").read_text() == "dear"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs files of another user")
def test_a_process_is_not_signalled_for_a_file_of_another_user(counting: Project) -> None:
    """Who starts a process, and when, everybody may see: a forged file can say both."""
    first = start(counting)
    assert counting.trainshed("stop").status == 0
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        told = status(first)
        told["TrainingJobStatus"], told["SecondaryStatus"] = "InProgress", "Training"
        told["Trainshed"]["Runner"] = identity.of(bystander.pid)
        shared = counting.folder / "shared"
        shared.mkdir()
        told["Trainshed"] |= identity.of_folder(str(shared)) | {"RunId": "0" * 32}
        (shared / "status.json").write_text(json.dumps(told))
        for path in (shared, shared / "status.json"):
            os.chown(path, 12345, 12345)
        for command in (["stop"], ["rm", "--force"]):
            done = counting.trainshed(*command, "./shared")
            assert (done.status, "another user" in done.stderr) == (1, True), done.output
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait(LIMIT)


def test_rm_stops_at_a_mount_point(counting: Project) -> None:
    first = start(counting)
    assert counting.trainshed("stop").status == 0
    foreign = first / "checkpoints/mounted"
    foreign.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", str(foreign)], capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        (foreign / "thesis.tex").write_text("dear")
        done = counting.trainshed("rm", first.name)
        assert (done.status, "is a mount point" in done.stderr) == (1, True), done.output
        assert (foreign / "thesis.tex").read_text() == "dear"
        assert (first / "status.json").exists(), "nothing is deleted until all of it can be"
    finally:
        subprocess.run(["umount", str(foreign)], check=True)
