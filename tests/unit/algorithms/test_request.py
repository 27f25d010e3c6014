"""`trainshed export algorithm`: judged by botocore's own model of the API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.paths import ENTRYPOINTS
from trainshed.algorithms import ENDING
from trainshed.algorithms.declaration import read
from trainshed.cli import main


@pytest.mark.parametrize("path", sorted(ENTRYPOINTS.glob(f"*{ENDING}")), ids=lambda path: path.name)
def test_sagemaker_takes_the_request(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = pytest.importorskip("botocore.session", reason="botocore is an extra package").get_session()
    from botocore.validate import ParamValidator

    name = path.name.removesuffix(ENDING)
    assert main(["export", "algorithm", name, "--image", "1.dkr.ecr.us-east-1.amazonaws.com/x:1"]) == 0
    made = json.loads(capsys.readouterr().out)
    shape = session.get_service_model("sagemaker").operation_model("CreateAlgorithm").input_shape
    assert ParamValidator().validate(made, shape).generate_report() == ""
    specification = made["TrainingSpecification"]
    names = [one["Name"] for one in specification["SupportedHyperParameters"]]
    assert {"learning_rate", "eta", "wd", "k", "num_trees", "num_components"} & set(names)
    assert "model_dir" not in names
    assert "train" in [one["Name"] for one in specification["TrainingChannels"]]
    tunable = {one["Name"] for one in specification["SupportedHyperParameters"] if one["IsTunable"]}
    assert tunable or name == "pca"  # with more components, what they leave is always less


@pytest.mark.parametrize("path", sorted(ENTRYPOINTS.glob(f"*{ENDING}")), ids=lambda path: path.name)
def test_a_request_keeps_the_platforms_limits(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of CreateAlgorithm: 100 hyperparameters, 40 metrics. What changes nothing is not offered."""
    name = path.name.removesuffix(ENDING)
    assert main(["export", "algorithm", name, "--image", "1.dkr.ecr.us-east-1.amazonaws.com/x:1"]) == 0
    made = json.loads(capsys.readouterr().out)["TrainingSpecification"]

    assert len(made["SupportedHyperParameters"]) <= 100 and len(made["MetricDefinitions"]) <= 40
    vain = {one.name for one in read(str(path)).hyperparameters.values() if one.changes_nothing}
    assert not vain & {one["Name"] for one in made["SupportedHyperParameters"]}
