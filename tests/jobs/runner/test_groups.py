"""Heterogeneous clusters on this machine: a group that prepares data, one that trains."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.runner_project import Project

SCRIPT = """\
import json, os
names = (
    "SM_CURRENT_HOST", "SM_CURRENT_INSTANCE_TYPE", "SM_CURRENT_INSTANCE_GROUP", "SM_CURRENT_INSTANCE_GROUP_HOSTS",
    "SM_INSTANCE_GROUPS", "SM_INSTANCE_GROUPS_DICT", "SM_DISTRIBUTION_INSTANCE_GROUPS", "SM_IS_HETERO", "SM_HOSTS",
    "SM_CHANNELS", "RANK", "WORLD_SIZE",
)
said = {name: os.environ.get(name) for name in names}
parts = os.environ.get("SM_CHANNEL_PARTS")
said["parts"] = sorted(os.listdir(parts)) if parts else []
said["beside"] = sorted(os.listdir(os.environ["SM_INPUT_DIR"] + "/data"))
rank = said["RANK"] or "0"
with open(f"{os.environ['SM_OUTPUT_DATA_DIR']}/said-{rank}.json", "w") as file:
    json.dump(said, file)
"""
FAIL = """\
import os, time
if "RANK" not in os.environ:
    raise ValueError("no data")
time.sleep(600)
"""
JOB = """\
program: train.py
source_dir: src
channels:
  raw: {path: raw, instance_groups: [data]}
  parts: {path: raw, instance_groups: [dnn], distribution: ShardedByS3Key}
  pipes: {path: raw, instance_groups: [data], input_mode: Pipe}
instance_groups:
  data: {instances: 1, instance_type: ml.c5.xlarge}
  dnn: {instances: 2, instance_type: ml.g5.xlarge}
distribution: {kind: torchrun, processes_per_host: 2, instance_groups: [dnn]}
"""


def said(run: Path, host: str) -> list[dict[str, object]]:
    found = sorted((run / host / "output/data").glob("said-*.json"))
    return [json.loads(path.read_text()) for path in found]


@pytest.fixture
def training(project: Project) -> Project:
    """A project with data of four files."""
    return project.write({"src/train.py": SCRIPT, "job.yaml": JOB, **{f"raw/{name}": name for name in "abcd"}})


@pytest.mark.spine
def test_each_group_gets_its_hosts_its_data_and_its_part_of_the_job(training: Project) -> None:
    done = training.trainshed("run", "job.yaml")
    assert done.status == 0, done.output
    run = training.run

    (data,), first, second = (said(run, f"algo-{number}") for number in (1, 2, 3))
    groups = {
        "data": {"instance_group_name": "data", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
        "dnn": {"instance_group_name": "dnn", "instance_type": "ml.g5.xlarge", "hosts": ["algo-2", "algo-3"]},
    }
    for one in (data, *first, *second):
        assert json.loads(str(one["SM_HOSTS"])) == ["algo-1", "algo-2", "algo-3"]
        assert json.loads(str(one["SM_INSTANCE_GROUPS"])) == ["data", "dnn"]
        assert json.loads(str(one["SM_INSTANCE_GROUPS_DICT"])) == groups
        assert (one["SM_DISTRIBUTION_INSTANCE_GROUPS"], one["SM_IS_HETERO"]) == ('["dnn"]', "true")
    assert (data["SM_CURRENT_INSTANCE_GROUP"], data["SM_CURRENT_INSTANCE_TYPE"]) == ("data", "ml.c5.xlarge")
    assert data["SM_CURRENT_INSTANCE_GROUP_HOSTS"] == '["algo-1"]'
    assert first[0]["SM_CURRENT_INSTANCE_GROUP_HOSTS"] == '["algo-2","algo-3"]'

    ranks = [(one["SM_CURRENT_HOST"], one["RANK"], one["WORLD_SIZE"]) for one in (*first, *second)]
    assert ranks == [("algo-2", "0", "4"), ("algo-2", "1", "4"), ("algo-3", "2", "4"), ("algo-3", "3", "4")]
    assert data["beside"] == ["pipes_0", "raw"] and first[0]["beside"] == ["parts"]
    assert [one["parts"] for one in (data, first[0], second[0])] == [[], ["a", "c"], ["b", "d"]]
    assert [one["SM_CHANNELS"] for one in (data, second[1])] == ['["pipes","raw"]', '["parts"]']

    told = json.loads((run / "status.json").read_text())
    assert [one["InstanceGroupName"] for one in told["ResourceConfig"]["InstanceGroups"]] == ["data", "dnn"]
    assert {name: sorted(held) for name, held in told["Trainshed"]["Data"].items()} == {
        "raw": ["algo-1"], "pipes": ["algo-1"], "parts": ["algo-2", "algo-3"],
    }  # fmt: skip


def test_a_group_that_fails_fails_the_job(training: Project) -> None:
    training.write({"src/train.py": FAIL})
    done = training.trainshed("run", "job.yaml", "--grace", "2")
    assert done.status == 1 and "no data" in done.output
    assert json.loads((training.run / "status.json").read_text())["Trainshed"]["FailedHost"] == "algo-1"


def test_groups_run_again_where_they_stopped_and_are_shown(training: Project) -> None:
    training.write({"src/train.py": "import os, sys\nsys.exit(not os.path.exists('/nonexistent') and 3)\n"})
    assert training.trainshed("run", "job.yaml", "--name", "groups").status == 3
    training.write({"src/train.py": SCRIPT})
    again = training.trainshed("resume", os.fspath(training.run))
    assert again.status == 0, again.output
    assert len(said(training.run, "algo-2")) == 2
    assert "3 processes" in training.command("ps", "--all").stdout
    assert "instance_groups:" in training.command("clone", os.fspath(training.run)).stdout
