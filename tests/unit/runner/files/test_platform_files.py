"""The config files of a run are the platform's, and `train` reads back what the job says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.properties import given, st
from trainshed.contract.hyperparameters import SpelledFloat, decode_value, to_argv
from trainshed.runner.files.platform_files import config_files, to_json
from trainshed.runner.job.encode import encode
from trainshed.runner.job.job import ChannelSpec, DistributionSpec, Job

GOLDEN = Path(__file__).parent / "golden"
JOB = Job(
    name="digits",
    program="train.py",
    source_dir="/project/src",
    hyperparameters={
        "lr": SpelledFloat("1.10"),
        "big": SpelledFloat("1e5"),
        "half": SpelledFloat(".5"),
        "epochs": 3,
        "flag": True,
        "nothing": None,
        "name": "a b",
        "digits": "07",
        "layers": [SpelledFloat("1.10"), "x", {"k": SpelledFloat("2.50")}],
        "umlaut": "é",
    },
    channels=(ChannelSpec("test", "/data/test", "FastFile", "text/csv"), ChannelSpec("train", "/data/train")),
    instances=2,
    distribution=DistributionSpec("torchrun", 4, "torchrun", 2),
    metric_definitions=(("loss", "loss=([0-9.]+)"),),
    checkpoints="/project/checkpoints",
    argv="json",
    grace_seconds=30.0,
)


def test_the_files_of_a_host_are_the_golden_ones() -> None:
    files = config_files(JOB, "digits-2026-11-21-10-00-00-000", "algo-2", "/opt/ml", "eth0")
    text = "".join(f"--- {name}\n{to_json(value)}" for name, value in sorted(files.items()))
    assert text == (GOLDEN / "config_files.txt").read_text()


def test_a_job_that_asks_for_nothing_adds_only_the_platforms_names() -> None:
    files = config_files(Job(name="x", program="train.py", source_dir="/src"), "x-1", "algo-1", "/opt/ml", "eth0")
    assert sorted(files) == ["hyperparameters.json", "inputdataconfig.json", "resourceconfig.json"]
    names = ["sagemaker_container_log_level", "sagemaker_job_name", "sagemaker_program", "sagemaker_submit_directory"]
    assert sorted(files["hyperparameters.json"]) == names


def test_no_grace_at_all_is_said() -> None:
    files = config_files(Job(name="x", grace_seconds=0.0), "x-1", "algo-1", "/opt/ml", "eth0")
    assert files["hyperparameters.json"]["trainshed_grace_seconds"] == "0"


def test_without_code_of_the_jobs_own_none_is_named() -> None:
    files = config_files(Job(name="x", image="i"), "x-1", "algo-1", "/opt/ml", "eth0")
    assert "sagemaker_submit_directory" not in files["hyperparameters.json"]
    assert "sagemaker_program" not in files["hyperparameters.json"]


def test_what_the_job_says_of_reserved_names_wins() -> None:
    job = Job(name="x", program="train.py", hyperparameters={"trainshed_argv": "flags"}, argv="json")
    assert config_files(job, "x-1", "algo-1", "/opt/ml", "eth0")["hyperparameters.json"]["trainshed_argv"] == '"flags"'


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (
            DistributionSpec("pipeline", parameters={"partitions": 2}),
            {"trainshed_distribution": '"pipeline"', "trainshed_pipeline": '{"partitions": 2}'},
        ),
        (
            DistributionSpec("pipeline", parameters={"partitions": 2}, for_amazons_library=True),
            {"trainshed_distribution": '"pipeline"', "mp_parameters": '{"partitions": 2}'},
        ),
        (
            DistributionSpec("pipeline", parameters={"partitions": 2}, for_amazons_library=True, mpi=True, mpi_options="-v"),
            {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_custom_mpi_options": '"-v"',
             "mp_parameters": '{"partitions": 2}'},
        ),
        (DistributionSpec("torchrun", for_amazons_library=True), {"sagemaker_distributed_dataparallel_enabled": "true"}),
    ],
)  # fmt: skip
def test_a_pipelines_parameters_reach_train_as_the_job_asked_for_them(
    distribution: DistributionSpec, expected: dict[str, str]
) -> None:
    made = config_files(Job(name="x", distribution=distribution), "x-1", "algo-1", "/opt/ml", "eth0")["hyperparameters.json"]
    assert {
        name: value
        for name, value in made.items()
        if not name.startswith("sagemaker_") or "mpi" in name or "distributed" in name
    } == expected


def values() -> Any:
    """The strategy of a job file's values."""
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.from_regex(r"-?(0|[1-9][0-9]{0,5})(\.[0-9]{1,6}|[eE][-+]?[0-9]{1,2})", fullmatch=True).map(SpelledFloat),
    )
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3)
    )


@given(values)
def test_any_value_reaches_the_script_as_it_was_written(value: object) -> None:
    text = encode(value)
    json.loads(text)
    assert to_argv({"name": decode_value(text)}) == to_argv({"name": value})
