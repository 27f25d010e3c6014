"""A project that somebody who means ill could harm, and what is left of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.runner_project import Project


@pytest.fixture
def prey(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a good script, and something of worth."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "state/trainshed/runs").mkdir(parents=True)
    return project.write({"train.py": "print('ran')", "precious/thesis.tex": "dear", "data/a.csv": "1"})


def picture(folder: Path) -> dict[str, object]:
    """Every path below a folder, with content."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        what = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else "folder"
        found[str(path.relative_to(folder))] = what
    return found
