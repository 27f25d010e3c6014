"""A CreateTrainingJob request in, DescribeTrainingJob's answer out: both judged by botocore's model of the API."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import job_of
from support.runner_project import Project
from trainshed.base.errors import JobError
from trainshed.runner.job.request import REQUEST_FIELDS


def request(folder: Path, **fields: Any) -> dict[str, Any]:
    """A request as an SDK would send it."""
    return {
        "TrainingJobName": "digits-of-today",
        "RoleArn": "arn:aws:iam::123456789012:role/training-role",
        "HyperParameters": {"epochs": "3", "lr": "1.10", "name": '"a b"', "sagemaker_program": '"train.py"'},
        "AlgorithmSpecification": {
            "TrainingImage": "registry.example.com/team/image:1.2",
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
        },
        "InputDataConfig": [
            {
                "ChannelName": "train",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": f"file://{folder}/data",
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
                "ContentType": "text/csv",
            },
            {
                "ChannelName": "code",
                "DataSource": {
                    "FileSystemDataSource": {
                        "FileSystemId": "fs-0123456789",
                        "FileSystemAccessMode": "ro",
                        "FileSystemType": "EFS",
                        "DirectoryPath": f"{folder}/src",
                    }
                },
            },
        ],
        "OutputDataConfig": {"S3OutputPath": f"file://{folder}/out"},
        "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200},
        "EnableManagedSpotTraining": True,
        "CheckpointConfig": {"S3Uri": f"file://{folder}/saved", "LocalPath": "/opt/ml/checkpoints"},
        "Environment": {"DEBUG": "on"},
        "RetryStrategy": {"MaximumRetryAttempts": 2},
        "TensorBoardOutputConfig": {"S3OutputPath": "s3://bucket/tensorboard"},
        "Tags": [{"Key": "team", "Value": "ada"}],
        **fields,
    }


@pytest.fixture(scope="session")
def model() -> Any:
    """botocore's model of SageMaker."""
    session = pytest.importorskip("botocore.session", reason="needs botocore: pip install 'trainshed[dev]'")
    return session.get_session().get_service_model("sagemaker")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    for name in ("src", "data"):
        (project / name).mkdir(parents=True)
    (project / "src/train.py").write_text("print('metric loss=0.5 step=1')\nopen('/dev/null')\n")
    (project / "data/a.csv").write_text("1\n")
    monkeypatch.chdir(project)
    return project


def problems_with(value: Any, shape: Any) -> str:
    """What botocore's validator says: missing and unknown fields, types, bounds."""
    from botocore.validate import ParamValidator

    return str(ParamValidator().validate(value, shape).generate_report())


def written(folder: Path, value: dict[str, Any]) -> str:
    (folder / "request.json").write_text(json.dumps(value, indent=2))
    return str(folder / "request.json")


def test_the_request_of_these_tests_is_one_that_the_api_takes(folder: Path, model: Any) -> None:
    assert problems_with(request(folder), model.operation_model("CreateTrainingJob").input_shape) == ""


def test_we_know_every_field_of_the_api(model: Any) -> None:
    assert set(model.operation_model("CreateTrainingJob").input_shape.members) <= set(REQUEST_FIELDS)


def test_a_request_becomes_a_job(folder: Path) -> None:
    job = job_of([written(folder, request(folder))], {})
    assert (job.full_name, job.name, job.image) == (
        "digits-of-today",
        "digits-of-today",
        "registry.example.com/team/image:1.2",
    )
    assert {name: str(value) for name, value in job.hyperparameters.items()} == request(folder)["HyperParameters"]
    assert [(one.name, one.path, one.content_type, one.access) for one in job.channels] == [
        ("code", f"{folder}/src", "", "ro"),
        ("train", f"{folder}/data", "text/csv", ""),
    ]
    assert (job.instances, job.instance_type, job.max_runtime_seconds) == (2, "ml.c5.xlarge", 3600)
    assert job.spot is not None and job.spot.max_wait_seconds == 7200
    assert (job.output, job.checkpoints, job.retries) == (f"{folder}/out", f"{folder}/saved", 2)
    assert (job.environment, job.metric_definitions) == ({"DEBUG": "on"}, (("loss", "loss=([0-9.]+)"),))
    assert job.config["tensorboardoutputconfig.json"]["LocalPath"] == "/opt/ml/output/tensorboard"
    assert job.tags == {"team": "ada"}
    assert job.notes == ("RoleArn: ignored, without meaning on this machine",)


def test_flags_win_over_a_request(folder: Path) -> None:
    flags = ["--no-image", "--instances", "1", "--hp", "epochs=9", "--name", "mine", "--output", "elsewhere"]
    job = job_of([written(folder, request(folder)), *flags], {})
    assert (job.image, job.instances, job.name, job.full_name) == ("", 1, "mine", "")
    assert (job.hyperparameters["epochs"], str(job.hyperparameters["lr"])) == (9, "1.10")
    assert job.output == f"{folder}/elsewhere"


def test_mlflow_of_a_request_becomes_the_variables_that_mlflow_reads(folder: Path, model: Any) -> None:
    config = {"MlflowResourceArn": "arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/ours"}
    asked = request(folder, MlflowConfig={**config, "MlflowExperimentName": "digits", "MlflowRunName": "first"})
    asked["Environment"] = {"MLFLOW_TRACKING_URI": "http://localhost:5000", "A": "1"}

    job = job_of([written(folder, asked)], {})

    assert problems_with(asked, model.shape_for("CreateTrainingJobRequest")) == ""
    assert job.environment == {
        "MLFLOW_TRACKING_URI": "http://localhost:5000", "A": "1",
        "MLFLOW_EXPERIMENT_NAME": "digits", "MLFLOW_RUN_NAME": "first",
    }  # fmt: skip
    without = job_of([written(folder, request(folder, MlflowConfig=config))], {})
    assert without.environment["MLFLOW_TRACKING_URI"] == config["MlflowResourceArn"]


def at(value: dict[str, Any], path: str, new: Any) -> dict[str, Any]:
    changed = copy.deepcopy(value)
    *parents, last = path.split(".")
    place: Any = changed
    for name in parents:
        place = place[int(name)] if name.isdigit() else place[name]
    if new is None:
        del place[last]
    else:
        place[last] = new
    return changed


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("HyperParametrs", {}, "is not a field of CreateTrainingJob (did you mean 'HyperParameters'?)"),
        ("TrainingJobName", "my_job", "must be 1 to 63 letters, digits and hyphens"),
        ("TrainingJobName", "../../escape", "must be 1 to 63 letters, digits and hyphens"),
        ("AlgorithmSpecification.AlgorithmName", "xgboost", "algorithms of the service cannot be run here"),
        ("AlgorithmSpecification.TrainingImage", None, "has no TrainingImage"),
        ("AlgorithmSpecification.TrainingInputMode", "Stream", "must be one of File, FastFile, Pipe"),
        ("HyperParameters.epochs", 3, "must be a string"),
        (
            "InputDataConfig.0.DataSource.S3DataSource.S3DataType",
            "AugmentedManifests",
            "only S3Prefix, ManifestFile, AugmentedManifestFile can",
        ),
        ("InputDataConfig.0.DataSource.S3DataSource.S3Uri", "file:///nowhere/at/all", "there is no /nowhere/at/all"),
        ("InputDataConfig.0.ChannelName", "../up", "is not a valid channel name"),
        ("InputDataConfig.1.ChannelName", "train", "channel 'train' is given twice"),
        ("ResourceConfig.InstanceGroups", [], "must be a list of groups"),
        ("ResourceConfig.InstanceCount", 0, "must be a whole number from 1 to 512"),
        ("StoppingCondition.MaxWaitTimeInSeconds", 60, "must not be less than max_runtime_seconds, 3600"),
        ("EnableManagedSpotTraining", False, "is for spot jobs (set EnableManagedSpotTraining to true)"),
        ("CheckpointConfig.LocalPath", "/etc", "must be a separate folder below /opt/ml"),
        ("ServerlessJobConfig", {}, "a serverless job has no image"),
        ("RetryStrategy.MaximumRetryAttempts", 31, "must be a whole number from 0 to 30"),
    ],
)
def test_what_is_wrong_in_a_request_is_said_with_its_line(folder: Path, path: str, value: Any, problem: str) -> None:
    with pytest.raises(JobError) as caught:
        job_of([written(folder, at(request(folder), path, value))], {})
    lines = [one.line() for one in caught.value.problems]
    assert [line for line in lines if problem in line and line.startswith("request.json:")], lines


def test_the_status_of_a_run_is_what_describe_training_job_answers(project: Project, folder: Path, model: Any) -> None:
    from botocore.parsers import create_parser

    path = written(folder, request(folder))
    project.folder = folder
    done = project.trainshed("run", path, "--no-image", "--grace", "5")
    assert done.status == 0, done.output
    answer = project.trainshed("status", f"{folder}/out", "--json")
    shape = model.operation_model("DescribeTrainingJob").output_shape
    response = {"body": answer.stdout.encode(), "status_code": 200, "headers": {}}
    parsed = create_parser("json").parse(response, shape)
    del parsed["ResponseMetadata"]
    assert problems_with(parsed, shape) == ""
    own = {key: value for key, value in json.loads(answer.stdout).items() if key not in shape.members}
    assert own.keys() == {"Trainshed"}, "one field of ours, and no other"
    assert set(shape.required_members) <= parsed.keys()
    assert parsed["TrainingJobName"] == "digits-of-today"
    assert parsed["TrainingJobStatus"] == "Completed"
    assert parsed["HyperParameters"] == request(folder)["HyperParameters"]
    assert parsed["ResourceConfig"] == {"InstanceType": "ml.c5.xlarge", "InstanceCount": 2}
    assert parsed["EnableManagedSpotTraining"] is True
    assert parsed["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200}
    assert [one["Status"] for one in parsed["SecondaryStatusTransitions"]][-1] == "Completed"
    assert parsed["CreationTime"] <= parsed["TrainingStartTime"] <= parsed["TrainingEndTime"]
    for field in ("TrainingJobStatus", "SecondaryStatus"):
        assert parsed[field] in shape.members[field].enum
    assert {one["Status"] for one in parsed["SecondaryStatusTransitions"]} <= set(shape.members["SecondaryStatus"].enum)


def test_a_request_that_is_run_twice_has_two_runs(project: Project, folder: Path) -> None:
    path = written(folder, at(request(folder), "OutputDataConfig.S3OutputPath", f"file://{folder}/out"))
    project.folder = folder
    for _ in range(2):
        done = project.trainshed("run", path, "--no-image", "--instances", "1", "--output", "")
        assert done.status == 0, done.output
    names = sorted(entry.name for entry in (folder / "runs").iterdir())
    assert len(names) == 2
    assert "digits-of-today" in names


def _of_image(folder: Path, repository: str, **hyperparameters: str) -> dict[str, Any]:
    """A request with an image of the platform's own."""
    asked = request(folder)
    asked["AlgorithmSpecification"]["TrainingImage"] = f"683313688378.dkr.ecr.us-east-1.amazonaws.com/{repository}"
    asked["HyperParameters"] = hyperparameters
    asked["InputDataConfig"] = [one for one in asked["InputDataConfig"] if one["ChannelName"] == "train"]
    return asked


def test_a_request_of_the_platforms_xgboost_is_one_of_the_ready_program(folder: Path) -> None:
    asked = _of_image(folder, "sagemaker-xgboost:1.7-1", num_round="5", objective="reg:linear")
    job = job_of([written(folder, asked)], {})

    assert (job.program, job.image) == ("tabular.py", "")
    assert any("the platform's XGBoost runs there alone; tabular of trainshed does its work" in note for note in job.notes)


def test_what_the_ready_program_does_not_take_is_named(folder: Path) -> None:
    with pytest.raises(JobError) as raised:
        job_of([written(folder, _of_image(folder, "sagemaker-xgboost:1.7-1", tree_metod="hist", gpu_count="3"))], {})

    said = [problem.line() for problem in raised.value.problems]
    assert len(said) == 2 and all("is not a hyperparameter of tabular" in line for line in said)


def test_a_script_in_the_platforms_image_stays_in_it(folder: Path) -> None:
    asked = _of_image(folder, "sagemaker-xgboost:1.7-1", sagemaker_program='"src/train.py"', rounds="5")

    assert "sagemaker-xgboost" in job_of([written(folder, asked)], {}).image


def test_an_image_of_the_platform_that_nothing_stands_in_for(folder: Path) -> None:
    with pytest.raises(JobError, match=r"is the platform's Neural Topic Model, which runs there alone.*use BERTopic"):
        job_of([written(folder, _of_image(folder, "ntm:1", num_topics="10"))], {})
