"""Heterogeneous clusters: which host is in which group, what it may use and which data it gets; and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import job_of
from trainshed.base.errors import JobError
from trainshed.places.container_command import CommandFacts, create, mounts
from trainshed.places.container_engine import Engine
from trainshed.runner.files import layout
from trainshed.runner.files.platform_files import config_files, resource_config
from trainshed.runner.job.job import ALL_GPUS, InstanceGroupSpec, Job, Resources
from trainshed.runner.job.write import job_file

GROUPS = """\
program: train.py
image: img:1
source_dir: src
channels:
  raw: {path: data, instance_groups: [cpus]}
  train: {path: data, instance_groups: [cpus, gpus]}
  all: data
instance_groups:
  cpus: {instances: 2, instance_type: ml.c5.18xlarge, cpus: 4, memory: 8g, gpus: 0}
  gpus: {instances: 1, instance_type: ml.p4d.24xlarge, gpus: all}
distribution: {kind: torchrun, instance_groups: [gpus]}
resources: {memory: 2g}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, which is the working directory."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").touch()
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(text: str, *flags: str) -> Job:
    Path("job.yaml").write_text(text)
    return job_of(["job.yaml", *flags], {})


def problems(text: str, *flags: str) -> list[str]:
    with pytest.raises(JobError) as caught:
        job(text, *flags)
    return [problem.line() for problem in caught.value.problems]


def test_each_group_has_hosts_of_its_own(folder: Path) -> None:
    made = job(GROUPS)
    cpus, gpus = made.instance_groups

    assert cpus == InstanceGroupSpec("cpus", 2, "ml.c5.18xlarge", Resources(cpus=4.0, memory=8 << 30, gpus=0))
    assert gpus == InstanceGroupSpec("gpus", 1, "ml.p4d.24xlarge", Resources(gpus=ALL_GPUS))
    assert (made.instances, made.hosts) == (3, ("algo-1", "algo-2", "algo-3"))
    assert [made.group_hosts(name) for name in ("cpus", "gpus", "x")] == [("algo-1", "algo-2"), ("algo-3",), ()]
    assert made.resources_of(gpus) == Resources(memory=2 << 30, gpus=ALL_GPUS)
    names = {host: [channel.name for channel in made.channels_of(host)] for host in made.hosts}
    assert names == {"algo-1": ["all", "raw", "train"], "algo-2": ["all", "raw", "train"], "algo-3": ["all", "train"]}


def test_hosts_are_told_as_the_platform_tells_them(folder: Path) -> None:
    made = job(GROUPS)
    groups = [
        {"instance_group_name": "cpus", "instance_type": "ml.c5.18xlarge", "hosts": ["algo-1", "algo-2"]},
        {"instance_group_name": "gpus", "instance_type": "ml.p4d.24xlarge", "hosts": ["algo-3"]},
    ]
    assert resource_config(made, "algo-3", "eth0") == {
        "current_host": "algo-3",
        "current_instance_type": "ml.p4d.24xlarge",
        "current_group_name": "gpus",
        "hosts": ["algo-1", "algo-2", "algo-3"],
        "instance_groups": groups,
        "network_interface_name": "eth0",
    }
    files = config_files(made, "run", "algo-3", "/opt/ml", "eth0")
    assert list(files["inputdataconfig.json"]) == ["all", "train"]
    assert files["hyperparameters.json"]["sagemaker_distribution_instance_groups"] == '["gpus"]'


def test_containers_have_the_limits_and_the_data_of_their_group(folder: Path) -> None:
    run = layout.plan(job(GROUPS), in_containers=True, now=0)
    engine = Engine(("docker",), gpus=True)
    machine = CommandFacts(engine, uid=0, gid=0, user="root", memory=64 << 30, devices=("0", "1"))
    limits = []
    for index in range(3):
        given = create(run, index, machine)[0]
        held = [given[given.index(flag) + 1] if flag in given else "" for flag in ("--cpus", "--memory", "--gpus")]
        limits.append(held)
    assert limits == [["4", str(8 << 30), ""], ["4", str(8 << 30), ""], ["", str(2 << 30), '"device=0,1"']]
    seen = [[there for _, there, _ in mounts(run, host) if there.startswith("/opt/ml/input/data/")] for host in run.hosts]
    assert [len(one) for one in seen] == [3, 3, 2] and "/opt/ml/input/data/raw" not in seen[2]


def test_what_a_clone_prints_is_the_same_job(folder: Path) -> None:
    made = job(GROUPS)
    text = job_file(made, "a copy")
    assert "instances: 3" not in text
    assert job(text).instance_groups == made.instance_groups
    assert job(text).channels == made.channels


def test_a_number_is_enough_and_flags_do_it_too(folder: Path) -> None:
    plain = "program: src/train.py\ninstance_groups: {a: 2, b: 1}\n"
    assert [(one.name, one.instances) for one in job(plain).instance_groups] == [("a", 2), ("b", 1)]
    flagged = job_of(["src/train.py", "--instance-group", "a=2", "--instance-group", "b=1"], {})
    assert flagged.instance_groups == job(plain).instance_groups


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ("instance_groups: {a: 1}\ninstances: 2", "is for hosts of one kind; each of `instance_groups` has its own"),
        ("instance_groups: {a: 0}", "must be a whole number from 1 to 512"),
        ("instance_groups: {a: {instance: 1}}", "did you mean 'instances'?"),
        ("instance_groups: {a: {gpus: -1}}", "must be all or a whole number from 0 to 1024"),
        ("instance_groups: {}", "has no group"),
        ("instance_groups: [a]", "must be a mapping"),
        ("instance_groups: 3", "must be a mapping"),
        ("instance_groups: {" + ", ".join(f"g{number}: 1" for number in range(6)) + "}", "a job has at most 5"),
        ("instance_groups: {a: 300, b: 300}", "have 600 hosts; a job has at most 512"),
        ('instance_groups: {"a\\u0007": 1}', "is not a valid group name"),
        ('instance_groups: {"": 1}', "has a value without a name"),
        ("instance_groups: {a: 1}\nchannels: {c: {path: data, instance_groups: [b]}}", "'b' is not a group of the job"),
        ("channels: {c: {path: data, instance_groups: [b]}}", "the job has no instance_groups"),
        ("instance_groups: {a: 1}\ndistribution: {kind: torchrun, instance_groups: [b]}", "'b' is not a group of the job"),
        ("instance_groups: {a: 1}\ndistribution: {instance_groups: [a]}", "has no effect with the distribution 'script'"),
        (
            "instance_groups: {a: {gpus: 1}, b: {gpus: 2}}\ndistribution: torchrun",
            "hosts of a, b have other numbers of GPUs or CPUs, and ranks must be equally many on each host",
        ),
    ],
)
def test_what_cannot_be_is_said(folder: Path, changed: str, problem: str) -> None:
    said = problems(f"program: src/train.py\n{changed}\n")
    assert any(problem in line for line in said), said


@pytest.mark.parametrize(
    "distribution",
    ["{kind: torchrun, instance_groups: [b]}", "{kind: torchrun, processes_per_host: 1}", "script"],
)
def test_ranks_may_be_equally_many_after_all(folder: Path, distribution: str) -> None:
    groups = "instance_groups: {a: {gpus: 1}, b: {gpus: 2}}"
    assert job(f"program: src/train.py\n{groups}\ndistribution: {distribution}\n").instances == 2


def test_a_distribution_that_names_no_group_spans_all_hosts(folder: Path) -> None:
    made = job("program: src/train.py\ninstance_groups: {a: 1, b: 1}\ndistribution: torchrun\n")
    sent = config_files(made, "run", "algo-1", "/opt/ml", "lo")["hyperparameters.json"]
    assert sent["sagemaker_distribution_instance_groups"] == '["a", "b"]'


def request(groups: Any, **resources: Any) -> dict[str, Any]:
    data = [
        {"ChannelName": name, "DataSource": {"S3DataSource": {"S3Uri": "s3://bucket/x", "InstanceGroupNames": names}}}
        for name, names in (("raw", ["cpus"]), ("all", None))
    ]
    return {
        "TrainingJobName": "j",
        "AlgorithmSpecification": {"TrainingImage": "img:1"},
        "InputDataConfig": data,
        "ResourceConfig": {"InstanceGroups": groups, "VolumeSizeInGB": 1, **resources},
    }


def of_request(held: dict[str, Any]) -> Job:
    Path("request.json").write_text(json.dumps(held))
    return job_of(["request.json"], {})


def test_a_requests_groups_and_the_groups_of_its_channels_arrive(folder: Path) -> None:
    made = of_request(
        request(
            [
                {"InstanceGroupName": "cpus", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
                {"InstanceGroupName": "gpus", "InstanceType": "ml.g5.xlarge", "InstanceCount": 2},
            ]
        )
    )
    assert made.instance_groups == (
        InstanceGroupSpec("cpus", 1, "ml.c5.xlarge"),
        InstanceGroupSpec("gpus", 2, "ml.g5.xlarge"),
    )
    assert {one.name: one.instance_groups for one in made.channels} == {"raw": ("cpus",), "all": ()}


@pytest.mark.parametrize(
    ("groups", "resources", "problem"),
    [
        ([], {}, "must be a list of groups"),
        ("x", {}, "must be a list of groups"),
        ([7], {}, "has no InstanceGroupName"),
        ([{"InstanceGroupName": "a", "InstanceCount": 1}] * 2, {}, "group 'a' is given twice"),
        ([{"InstanceGroupName": "cpus", "Count": 1}], {}, "is not known here"),
        ([{"InstanceGroupName": "cpus", "InstanceCount": 1}], {"InstanceCount": 1}, "is for hosts of one kind"),
        ([{"InstanceGroupName": "a", "InstanceCount": 1}], {}, "'cpus' is not a group of the job"),
    ],
)
def test_what_is_wrong_with_a_requests_groups_is_said(
    folder: Path, groups: Any, resources: dict[str, Any], problem: str
) -> None:
    with pytest.raises(JobError) as caught:
        of_request(request(groups, **resources))
    assert any(problem in one.line() for one in caught.value.problems), [one.line() for one in caught.value.problems]
