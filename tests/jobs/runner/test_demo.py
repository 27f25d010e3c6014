"""`trainshed demo` trains here and now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.runner_project import Project


@pytest.mark.parametrize("kept", [True, False])
def test_the_demo_trains_without_torch_data_or_network(project: Project, kept: bool) -> None:
    base = project.folder / "ml"
    if kept:
        base.mkdir()
    environment = {} if kept else {"TMPDIR": str(project.folder)}
    place = str(base) if kept else "/proc/nowhere"
    done = project.trainshed("demo", SAGEMAKER_BASE_DIR=place, TRAINSHED_ENTRYPOINTS="/nowhere", **environment)
    assert done.status == 0, done.output
    assert done.stdout.count("metric loss=") == 6
    if kept:
        line = json.loads((base / "model/line.json").read_text())
        assert abs(line["slope"] - 2) < 0.1 and abs(line["offset"] - 1) < 0.1
        again = project.command("demo", SAGEMAKER_BASE_DIR=place)
        assert (again.status, "already holds a job" in again.stderr) == (1, True)
    else:
        assert list(project.folder.iterdir()) == []


@pytest.mark.safety
def test_the_demo_leaves_the_machines_own_folders_alone(project: Project) -> None:
    """It once made /opt/ml on the machine of whoever tried it."""
    before = Path("/opt/ml").exists()
    done = project.trainshed("demo", TRAINSHED_ENTRYPOINTS="/nowhere", TMPDIR=str(project.folder), SAGEMAKER_BASE_DIR="")
    assert done.status == 0, done.output
    assert Path("/opt/ml").exists() == before and list(project.folder.iterdir()) == []


@pytest.mark.torch
def test_the_demo_trains_the_network_in_a_checkout(project: Project) -> None:
    pytest.importorskip("sklearn")
    (project.folder / "ml").mkdir()
    done = project.trainshed("demo", SAGEMAKER_BASE_DIR=str(project.folder / "ml"), TRAINSHED_ENTRYPOINTS="")
    assert done.status == 0 and "a network on handwritten digits" in done.stderr, done.output
    assert "#011" not in done.output and list((project.folder / "ml/model").iterdir())
