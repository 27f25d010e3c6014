"""A container's channel in FastFile mode: a file system that the runner mounts, and the container cannot change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.own_s3 import own_s3, put
from support.runner_project import Project, wait_until
from trainshed.machine.mountpoints import mount_points, obstacle
from trainshed.runner.files.fetching.rclone import program

pytestmark = pytest.mark.skipif(
    not program() or bool(obstacle()), reason=f"needs rclone and FUSE: {obstacle() or 'no rclone'}"
)

JOB = """\
image: %s
entrypoint: [sh, -c]
arguments: ["%s"]
channels: {train: {path: s3://bucket/box/, input_mode: FastFile}}
"""
LOOK = "cd /opt/ml/input/data/train && ls && cat one && echo no >new; id -u"
WAIT = (
    "cd /opt/ml/output; touch there; until test -e go-on; do sleep 0.05; done; "
    "cat /opt/ml/input/data/train/two; touch read; exec sleep 600"
)


@pytest.fixture
def here(tmp_path: Path, s3: dict[str, str]) -> Iterator[Project]:
    made = Project(tmp_path / "project")
    made.folder.mkdir()
    yield made
    for stored in made.folder.glob("runs/*"):
        made.trainshed("rm", "--force", str(stored))
    made.end()


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    with own_s3() as environment:
        put(environment, {"box/one": b"first\n", "box/two": b"second\n"})
        yield environment


def mounted(project: Project) -> list[str]:
    return [one.point for one in mount_points() if one.point.startswith(str(project.folder))]


@pytest.mark.spine
def test_a_container_is_shown_the_objects_read_only(here: Project, base_image: str, s3: dict[str, str]) -> None:
    here.write({"job.yaml": JOB % (base_image, LOOK)})
    done = here.trainshed("run", "job.yaml", **s3)
    assert done.status == 0, done.output
    assert done.stdout.splitlines() == ["one", "two", "first", str(os.getuid())], done.output
    assert "Read-only file system" in done.stderr and "fetched first" not in done.stderr
    assert not mounted(here)


def test_a_container_that_outlives_its_runner_reads_on(here: Project, base_image: str, s3: dict[str, str]) -> None:
    here.write({"job.yaml": JOB % (base_image, WAIT)})
    process = here.start("run", "job.yaml", **s3)
    wait_until(lambda: list(here.folder.glob("runs/*/algo-1/output/there")), "the container")
    (there,) = here.folder.glob("runs/*/algo-1/output/there")
    process.kill()
    process.wait()
    wait_until(lambda: not mounted(here), "the mount's end")
    (there.parent / "go-on").touch()
    wait_until(lambda: (there.parent / "read").exists(), "the reading")
    here.trainshed("rm", "--force", here.run.name)
    assert not (here.folder / "runs").exists()
    wait_until(lambda: not clients(here), "rclone's end")


def clients(project: Project) -> list[str]:
    """rclones for the project."""
    lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    return [line for line in lines if "rclone mount" in line and str(project.folder) in line]
