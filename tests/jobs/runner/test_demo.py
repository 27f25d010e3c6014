"""`trainshed demo` trains here and now."""

from __future__ import annotations

import json

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
