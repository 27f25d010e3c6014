"""The container fixtures of tests/container, for the faults that need a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.docker_cli import Containers
from support.image_fixtures import base_image, cpu_image, docker, network  # noqa: F401 (fixtures)


@pytest.fixture
def bare_containers(docker: str, base_image: str, tmp_path: Path) -> Iterator[Containers]:  # noqa: F811
    """Runs containers of a plain Debian image with Python."""
    containers = Containers(image=base_image, folder=tmp_path / "containers", session=docker)
    yield containers
    containers.remove()


@pytest.fixture
def torch_containers(docker: str, cpu_image: str, tmp_path: Path) -> Iterator[Containers]:  # noqa: F811
    """Runs containers of the image of Dockerfile.cpu."""
    containers = Containers(image=cpu_image, folder=tmp_path / "containers", session=docker)
    yield containers
    containers.remove()
