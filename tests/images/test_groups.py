"""Containers of several kinds: each has the limits and the data of its group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.runner_project import Project

JOB = """\
image: %s
entrypoint: [sh, -c]
arguments: ["%s"]
channels:
  raw: {path: data, instance_groups: [data]}
  all: data
instance_groups:
  data: {memory: 64m}
  train: {memory: 96m}
"""
LOOK = (
    "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; "
    "grep -o 'current_group_name.*' /opt/ml/input/config/resourceconfig.json | tr -dc a-z_; echo; ls /opt/ml/input/data"
)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path / "project")
    made.folder.mkdir()
    yield made
    for stored in made.folder.glob("runs/*"):
        made.trainshed("rm", "--force", str(stored))
    made.end()


@pytest.mark.spine
def test_containers_of_two_groups_have_their_own_limits_and_channels(here: Project, base_image: str) -> None:
    here.write({"job.yaml": JOB % (base_image, LOOK), "data/a.csv": "1\n"})
    done = here.trainshed("run", "job.yaml")
    assert done.status == 0, done.output
    said = {host: (here.run / f"logs/{host}.log").read_text().split() for host in ("algo-1", "algo-2")}
    assert said == {
        "algo-1": [str(64 << 20), "current_group_namedata", "all", "raw"],
        "algo-2": [str(96 << 20), "current_group_nametrain", "all"],
    }
