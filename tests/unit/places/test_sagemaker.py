"""`trainshed export sagemaker`: judged by botocore's own model of the API."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.paths import TOOLKIT
from trainshed.base.errors import JobError
from trainshed.places.sagemaker import request
from trainshed.runner.job.job import ChannelSpec, InstanceGroupSpec, Job, SecretReference

PLACE = {
    "role": "arn:aws:iam::123456789012:role/training",
    "instance_type": "ml.g5.2xlarge",
    "output": "s3://bucket/models",
    "code": "s3://bucket/code.tar.gz",
    "channels": {"train": "s3://bucket/train"},
}


def job(tmp_path: Path, place: dict[str, Any] | None = None, **fields: Any) -> Job:
    given: dict[str, Any] = {
        "name": "digits",
        "image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1",
        "program": "train.py",
        "source_dir": str(tmp_path),
        "instances": 2,
        "hyperparameters": {"epochs": 3, "name": "a b"},
        "channels": (ChannelSpec("train", "/data/train", "FastFile", "text/csv"),),
        "environment": {"NCCL_DEBUG": "WARN"},
        "metric_definitions": (("loss", "loss=([0-9.]+)"),),
        "places": {"sagemaker": {**PLACE, **(place or {})}},
    }
    return Job(**{**given, **fields})


def check(made: dict[str, Any]) -> None:
    """By botocore: names, types and what is required; and, which botocore leaves to the service, lengths and patterns."""
    session = pytest.importorskip("botocore.session", reason="botocore is an extra package").get_session()
    from botocore.validate import ParamValidator

    shape = session.get_service_model("sagemaker").operation_model("CreateTrainingJob").input_shape
    report = ParamValidator().validate(made, shape)
    assert not report.has_errors(), report.generate_report()
    _limits(made, shape, "request")


def _limits(value: Any, shape: Any, where: str) -> None:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    size = value if isinstance(value, int) else len(value)
    assert least is None or size >= least, f"{where} is below {least}"
    assert most is None or size <= most, f"{where} is above {most}"
    if shape.type_name == "string":
        assert "enum" not in shape.metadata or value in shape.metadata["enum"], f"{where}: {value}"
        pattern = shape.metadata.get("pattern", "")
        assert "\\p" in pattern or re.fullmatch(pattern or ".*", value, re.DOTALL), f"{where} = {value!r} is not {pattern}"
    elif shape.type_name == "structure":
        for name, item in value.items():
            _limits(item, shape.members[name], f"{where}.{name}")
    elif shape.type_name == "list":
        for number, item in enumerate(value):
            _limits(item, shape.member, f"{where}[{number}]")
    elif shape.type_name == "map":
        for name, item in value.items():
            _limits(name, shape.key, f"{where} (name)")
            _limits(item, shape.value, f"{where}.{name}")


def test_a_plain_job_is_a_valid_request(tmp_path: Path) -> None:
    made, notes = request(job(tmp_path))

    check(made)
    assert not notes
    assert made["HyperParameters"]["epochs"] == "3" and made["HyperParameters"]["name"] == '"a b"'
    assert made["HyperParameters"]["sagemaker_submit_directory"] == '"s3://bucket/code.tar.gz"'
    (channel,) = made["InputDataConfig"]
    assert (channel["ChannelName"], channel["InputMode"], channel["ContentType"]) == ("train", "FastFile", "text/csv")
    assert made["ResourceConfig"] == {"InstanceType": "ml.g5.2xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30}


def test_all_that_can_be_asked_for_is_valid(tmp_path: Path) -> None:
    place = {
        "spot": True,
        "max_wait_seconds": 7200,
        "checkpoints": "s3://bucket/checkpoints",
        "volume_gb": 500,
        "subnets": ["subnet-1"],
        "security_groups": ["sg-1"],
        "tags": {"team": "vision"},
        "keep_alive_seconds": 600,
        "encrypt_traffic": True,
        "network_isolation": True,
    }
    made, _ = request(job(tmp_path, place, max_runtime_seconds=3600.0))

    check(made)
    assert made["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200}
    assert made["CheckpointConfig"] == {"S3Uri": "s3://bucket/checkpoints", "LocalPath": "/opt/ml/checkpoints"}
    assert made["EnableManagedSpotTraining"] and made["VpcConfig"]["Subnets"] == ["subnet-1"]


def test_keep_alive_is_the_jobs_unless_the_place_says_another(tmp_path: Path) -> None:
    for place, kept in (({}, 90), ({"keep_alive_seconds": 600}, 600)):
        made, _ = request(job(tmp_path, place, keep_alive=90.0))
        check(made)
        assert made["ResourceConfig"]["KeepAlivePeriodInSeconds"] == kept
    with pytest.raises(JobError) as caught:
        request(job(tmp_path, keep_alive=25_000.0))
    assert "the platform allows 21600" in str(caught.value) + caught.value.details
    groups = (InstanceGroupSpec("cpus", 1, "ml.c5.xlarge"), InstanceGroupSpec("gpus", 2, "ml.g5.2xlarge"))
    made, notes = request(job(tmp_path, {"instance_type": ""}, instances=3, instance_groups=groups, keep_alive=90.0))
    assert "KeepAlivePeriodInSeconds" not in made["ResourceConfig"]
    assert any("keep_alive is left out" in note for note in notes)


def test_groups_of_hosts_are_the_platforms(tmp_path: Path) -> None:
    groups = (InstanceGroupSpec("cpus", 1, "ml.c5.xlarge"), InstanceGroupSpec("gpus", 2, "ml.g5.2xlarge"))
    made = job(tmp_path, {"instance_type": ""}, instances=3, instance_groups=groups)
    made = replace(made, channels=tuple(replace(one, instance_groups=("gpus",)) for one in made.channels))

    sent, _ = request(made)

    check(sent)
    assert sent["ResourceConfig"]["InstanceGroups"] == [
        {"InstanceType": "ml.c5.xlarge", "InstanceCount": 1, "InstanceGroupName": "cpus"},
        {"InstanceType": "ml.g5.2xlarge", "InstanceCount": 2, "InstanceGroupName": "gpus"},
    ]
    assert sent["ResourceConfig"].keys().isdisjoint({"InstanceType", "InstanceCount"})
    assert sent["InputDataConfig"][0]["DataSource"]["S3DataSource"]["InstanceGroupNames"] == ["gpus"]

    unfit = replace(made, instance_groups=(InstanceGroupSpec("cpus"),), places={"sagemaker": {
        **made.places["sagemaker"], "instance_type": "ml.g5.2xlarge", "keep_alive_seconds": 60,
    }})  # fmt: skip
    with pytest.raises(JobError) as caught:
        request(unfit)
    told = str(caught.value) + caught.value.details
    for text in ("sagemaker.instance_type: is for hosts of one kind", "keep_alive_seconds: is for hosts of one kind",
                 "instance_groups.cpus.instance_type: must be a type of the platform"):  # fmt: skip
        assert text in told, told


def test_what_the_platform_needs_is_told_all_at_once(tmp_path: Path) -> None:
    place = {
        "role": "me",
        "output": "/tmp",
        "code": "",
        "channels": {"tset": "s3://b"},
        "instance": "x",
        "instance_type": "",
    }
    with pytest.raises(JobError) as caught:
        request(job(tmp_path, place, image="", hyperparameters={"text": "x" * 2500, "password": "x"}))
    told = str(caught.value) + caught.value.details
    for text in (
        "sagemaker.role: must be the ARN",
        "sagemaker.output: must be an s3:// address",
        "sagemaker.code: must be the s3:// address",
        "sagemaker.channels.tset: is not a channel",
        "sagemaker.channels.train: must be the s3:// address",
        "sagemaker.instance: is not a known field",
        "sagemaker.instance_type: is missing",
        "image: is missing",
        "hyperparameters.text: has 2502 characters",
        "hyperparameters.password: looks like a secret",
    ):
        assert text in told, told


@pytest.mark.safety
def test_secret_variables_are_left_out_and_named(tmp_path: Path) -> None:
    made, notes = request(job(tmp_path, environment={"HF_TOKEN": "hf_of_mine", "A": "1"}))

    assert made["Environment"] == {"A": "1"}
    assert "HF_TOKEN" in notes[0] and "hf_of_mine" not in notes[0]


@pytest.mark.safety
def test_secrets_inside_values_are_left_out_or_refused(tmp_path: Path) -> None:
    nested = {"SETTINGS": '{"password": "nested-secret"}', "INDEX": "https://me:nested-secret@host/", "A": "1"}
    made, notes = request(job(tmp_path, environment=nested, references={"FANCY": SecretReference("env", "MINE")}))

    assert made["Environment"] == {"A": "1"} and "nested-secret" not in json.dumps(made)
    assert all(name in notes[0] for name in ("SETTINGS", "INDEX", "FANCY"))
    for changes in ({"hyperparameters": {"x": {"password": "nested-secret"}}}, {"tags": {"x": "nested-secret"}}):
        with pytest.raises(JobError, match=r"looks like a secret|in the clear") as caught:
            request(job(tmp_path, environment=nested, **changes))
        assert "nested-secret" not in str(caught.value)


def test_the_command_prints_the_request_and_packs_the_code(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("pass\n")
    place = json.dumps({**PLACE, "channels": {}})
    (tmp_path / "job.yaml").write_text(f"name: digits\nimage: a/b:1\nprogram: src/train.py\nsagemaker: {place}\n")
    command = [sys.executable, "-m", "trainshed.cli", "export", "sagemaker", "job.yaml", "--code", "code.tar.gz"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TOOLKIT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout))
    with tarfile.open(tmp_path / "code.tar.gz") as archive:
        assert archive.getnames() == ["train.py"]
    first = (tmp_path / "code.tar.gz").read_bytes()
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert (tmp_path / "code.tar.gz").read_bytes() == first
