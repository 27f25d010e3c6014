"""Fixtures for tests that run images. Without a Docker daemon these tests are skipped; in CI they fail instead."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import image_build, projects
from support.docker_cli import LABEL, Containers
from support.docker_cli import docker as docker_cli


@pytest.fixture(scope="session")
def docker() -> Iterator[str]:
    """The label of this session's containers and networks; removes what is left of them at the end."""
    problem = _daemon_problem()
    if problem and os.environ.get("CI") == "true":
        pytest.fail(f"CI needs a Docker daemon: {problem}", pytrace=False)
    if problem:
        pytest.skip(f"needs a Docker daemon: {problem}")
    session = uuid.uuid4().hex
    yield session
    left = docker_cli("ps", "--all", "--quiet", "--filter", f"label={LABEL}={session}").stdout.split()
    if left:
        docker_cli("rm", "--force", "--volumes", *left)


@pytest.fixture(scope="session")
def base_image(docker: str) -> str:
    """Name of a plain Debian image with Python and pip: what a user brings."""
    return image_build.build_base()


@pytest.fixture(scope="session")
def cpu_image(docker: str) -> str:
    """Name of an image of Dockerfile.cpu as it is in this checkout, built if it is missing or older."""
    return image_build.build_cpu()


@pytest.fixture
def container(docker: str, cpu_image: str, tmp_path: Path) -> Iterator[Containers]:
    """Runs containers: `container("train", job=container.job().configure({...}))`."""
    containers = Containers(image=cpu_image, folder=tmp_path / "containers", session=docker)
    yield containers
    containers.remove()


@pytest.fixture
def project(docker: str, cpu_image: str) -> Iterator[Path]:
    """A folder of a person who is not root, with code and data; containers that a failed test leaves are removed."""
    folder = Path(tempfile.mkdtemp(prefix="trainshed-test-"))
    projects.write_project(folder)
    yield folder
    projects.remove_left(folder)
    shutil.rmtree(folder)


@pytest.fixture
def network(docker: str) -> Iterator[str]:
    """Name of a network in which containers reach each other by their `hostname`."""
    name = f"trainshed-test-{uuid.uuid4().hex[:12]}"
    docker_cli("network", "create", "--label", f"{LABEL}={docker}", name)
    yield name
    members = docker_cli("ps", "--all", "--quiet", "--filter", f"network={name}").stdout.split()
    if members:
        docker_cli("rm", "--force", "--volumes", *members)
    docker_cli("network", "rm", name)


def _daemon_problem() -> str:
    """Why no container can be run here, "" where one can."""
    try:
        done = subprocess.run(
            ["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True, timeout=120
        )
    except FileNotFoundError:
        return "there is no docker command"
    except subprocess.TimeoutExpired:
        return "`docker info` gives no answer"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["`docker info` failed"])[-1]
