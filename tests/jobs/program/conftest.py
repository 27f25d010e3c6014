"""Fixtures for tests that install packages for real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.program.packages import Environment, Packages
from support.wheels import make_venv


class Said:
    """Takes what `train` would say; `lines` has it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    folder = tmp_path / "packages"
    folder.mkdir()
    return Packages(folder)


@pytest.fixture(scope="session")
def shared_venv(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Made once; tests install packages with names of their own."""
    folder = tmp_path_factory.mktemp("venv") / "venv"
    make_venv(folder)
    return Environment(folder)


@pytest.fixture
def read_only_venv(shared_venv: Environment) -> Iterator[Environment]:
    """The environment, not writable for as long as the test takes."""
    folder = shared_venv.site_packages
    folder.chmod(0o555)
    yield shared_venv
    folder.chmod(0o755)
