"""`keep_alive` with containers: the packages of an image's run serve the next run of that image."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from support.docker_cli import docker as docker_cli
from support.projects import left_behind, run
from support.wheels import make_wheel

pytestmark = [pytest.mark.docker, pytest.mark.heavy]

TRAIN = """\
import os, subprocess, warmth
print("version", warmth.VERSION, os.getuid(), os.path.exists("/tmp/left"), "sleep" in subprocess.getoutput(
    "cat /proc/[0-9]*/comm"))
open("/tmp/left", "w").close()
subprocess.Popen(["sleep", "1000"], start_new_session=True)
"""


@pytest.fixture
def warm(project: Path) -> Path:
    """A project with a wheel that the containers install; its pools are beside it."""
    wheels = project / "wheels"
    wheels.mkdir()
    make_wheel(wheels, "warmth", "1.0")
    (project / "src/warm.py").write_text(TRAIN)
    (project / "src/requirements.txt").write_text("warmth==1.0\n")
    return project


def own_state(project: Path) -> dict[str, str]:
    """Pools of this test alone."""
    return {"XDG_STATE_HOME": f"{project}/state"}


def keep_alive(project: Path, image: str, *more: str) -> tuple[str, str]:
    """What a run of ours printed: (its script, all)."""
    arguments = ("run", "src/warm.py", "--source-dir", "src", "--image", image, "--keep-alive", "10m", *more)
    wheels = ("--channel", "wheels=wheels", "--env", "PIP_FIND_LINKS=/opt/ml/input/data/wheels", "--env", "PIP_NO_INDEX=1")
    status, stdout, stderr = run(project, *arguments, *wheels, **own_state(project))
    assert status == 0, stdout + stderr
    return stdout, stdout + stderr


def test_the_packages_of_an_image_serve_its_next_run_and_no_other_images(warm: Path, cpu_image: str) -> None:
    name = f"trainshed-test-warm:{uuid.uuid4().hex[:12]}"
    docker_cli("tag", cpu_image, name)
    try:
        _, first = keep_alive(warm, name)
        assert "installing requirements.txt" in first, first
        printed, second = keep_alive(warm, name)
        assert "is installed already" in second, second
        assert "False False" in printed, "files or processes of the run before"
        docker_cli("rmi", name)
        made = docker_cli("create", cpu_image).stdout.strip()
        docker_cli("commit", "--change", "LABEL another=one", made, name)
        docker_cli("rm", made)
        _, third = keep_alive(warm, name)
        assert "does not fit: it is of another image" in third and "installing requirements.txt" in third, third
        listed = run(warm, "ps", **own_state(warm))[1]
        assert listed.count("free") == 2, listed
    finally:
        run(warm, "release", "all", **own_state(warm))
        docker_cli("rmi", name)
    assert left_behind(warm) == []


def test_two_containers_share_the_packages(warm: Path, cpu_image: str) -> None:
    try:
        _, first = keep_alive(warm, cpu_image, "--instances", "2")
        assert first.count("installing requirements.txt with") == 1, first
        printed, second = keep_alive(warm, cpu_image, "--instances", "2")
        assert printed.count("version 1.0") == 2 and second.count("is installed already") == 2, second
    finally:
        run(warm, "release", "all", **own_state(warm))
