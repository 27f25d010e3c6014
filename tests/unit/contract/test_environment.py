"""The script's environment where it goes beyond the peer's (test_golden.py compares with that one)."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from trainshed.contract.cluster import Cluster, Hardware
from trainshed.contract.environment import LONGEST, script_environment


def environment_of(tree: Any, cluster: Cluster | None = None, **environ: str) -> dict[str, str]:
    """The script's variables, made without complaint."""
    made, notes = script_environment(
        tree.read(**environ),
        cluster or Cluster(hosts=("algo-1",), current_host="algo-1"),
        code_dir="/opt/ml/code",
        entry_point="src/train.py",
        arguments=["--epochs", "3"],
    )
    assert notes == []
    return made


def test_variables_of_the_newer_sdk_are_set_as_well(job_tree: Any) -> None:
    cluster = Cluster(
        hosts=("algo-1", "algo-2"),
        current_host="algo-2",
        rank=1,
        processes_per_host=4,
        address="algo-1",
        port=7777,
        interface="eth0",
        hardware=Hardware(cpus=3, gpus=4),
    )
    made = environment_of(job_tree.configure(resources=job_tree.hosts(2, 2)), cluster)

    expected = {
        "SM_INPUT_DATA_DIR": f"{job_tree.base}/input/data",
        "SM_OUTPUT_FAILURE": f"{job_tree.base}/output/failure",
        "SM_MASTER_ADDR": "algo-1",
        "SM_MASTER_PORT": "7777",
        "SM_SOURCE_DIR": "/opt/ml/code",
        "SM_ENTRY_SCRIPT": "src/train.py",
        "SM_HOST_COUNT": "2",
        "SM_CURRENT_HOST_RANK": "1",
        "SM_DISTRIBUTED_CONFIG": '{"process_count_per_node":4}',
        "SM_CHECKPOINT_DIR": f"{job_tree.base}/checkpoints",
        "SAGEMAKER_METRICS_DIRECTORY": f"{job_tree.base}/output/metrics/sagemaker",
        "SM_NUM_GPUS": "4",
        "SM_NUM_CPUS": "3",
        "SM_USER_ARGS": '["--epochs","3"]',
        "SM_MODULE_NAME": "src/train",
    }
    assert {name: made[name] for name in expected} == expected


def test_names_that_shells_drop_are_set_in_a_form_that_they_keep(job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"learning-rate": "1e-3"}, channels={"train-data.v2": {}})
    made = environment_of(job_tree)

    assert made["SM_HP_LEARNING-RATE"] == made["SM_HP_LEARNING_RATE"] == "1e-3"
    assert (
        made["SM_CHANNEL_TRAIN-DATA.V2"] == made["SM_CHANNEL_TRAIN_DATA_V2"] == f"{job_tree.base}/input/data/train-data.v2"
    )


@pytest.mark.parametrize("order", [("a-b", "a_b"), ("a_b", "a-b")])
def test_a_name_as_it_is_written_counts_more_than_anothers_second_form(order: tuple[str, str], job_tree: Any) -> None:
    job_tree.configure(hyperparameters={name: f"value of {name}" for name in order}, channels={name: {} for name in order})
    made = environment_of(job_tree)

    assert made["SM_HP_A_B"] == "value of a_b" and made["SM_HP_A-B"] == "value of a-b"
    assert made["SM_CHANNEL_A_B"].endswith("/a_b") and made["SM_CHANNEL_A-B"].endswith("/a-b")


@pytest.mark.parametrize("names", [("lr", "LR"), ("LR", "lr")])
def test_of_names_that_differ_in_case_only_the_last_one_counts(names: tuple[str, str], job_tree: Any) -> None:
    made = environment_of(job_tree.configure(hyperparameters={name: f'"{name}"' for name in names}))

    assert made["SM_HP_LR"] == names[1]


def test_flags_that_make_transformers_import_amazons_libraries_are_never_true(job_tree: Any) -> None:
    flags = {"sagemaker_mpi_enabled": "true", "sagemaker_distributed_dataparallel_enabled": "true"}
    made = environment_of(job_tree.configure(hyperparameters=flags))

    assert json.loads(made["SM_FRAMEWORK_PARAMS"]) == dict.fromkeys(flags, False)


def test_settings_of_ours_stay_out_of_the_frameworks_parameters(job_tree: Any) -> None:
    made = environment_of(job_tree.configure(hyperparameters={"trainshed_argv": "json", "sagemaker_other": "1"}))

    assert made["SM_FRAMEWORK_PARAMS"] == '{"sagemaker_other":1}' and made["SM_HPS"] == "{}"


def test_a_topology_is_passed_on_where_there_is_one(job_tree: Any) -> None:
    topology = [{"hostName": "algo-1", "capacityUnitId": "cu"}]

    assert "SM_TOPOLOGY" not in environment_of(job_tree.configure(resources=job_tree.hosts(1)))
    made = environment_of(job_tree.configure(resources=job_tree.hosts(1, topology=topology)))
    assert json.loads(made["SM_TOPOLOGY"]) == topology


def test_text_that_is_no_utf8_is_passed_on_byte_for_byte(job_tree: Any) -> None:
    made = environment_of(job_tree.configure(), TRAINING_JOB_NAME=os.fsdecode(b"job-\xff"))

    assert os.fsencode(made["SAGEMAKER_JOB_NAME"]) == b"job-\xff"


@pytest.mark.parametrize(("letter", "width"), [("x", 1), ("ü", 2)])
@pytest.mark.parametrize(("spare", "kept"), [(0, True), (-1, False)])
def test_a_variable_is_left_out_exactly_where_linux_would_refuse_it(
    letter: str, width: int, spare: int, kept: bool, job_tree: Any
) -> None:
    name = "SM_HP_LONG"
    longest = LONGEST - 1 - len(name)  # "NAME=VALUE" and the NUL behind it are 32 pages
    value = letter * (longest // width) + "x" * (longest % width) + "x" * -spare
    job_tree.configure(hyperparameters={"long": value})
    job = job_tree.read()
    made, notes = script_environment(
        job, Cluster(hosts=("a",), current_host="a"), code_dir="/c", entry_point="t.py", arguments=[]
    )

    assert (name in made) is kept
    assert kept == (not any(note.startswith(f"{name} is not set: it is longer than the 128 KiB") for note in notes))
    # The kernel's word on it.
    if kept:
        subprocess.run(["/bin/true"], env={name: made[name]}, check=True)
    else:
        with pytest.raises(OSError, match="Argument list too long"):
            subprocess.run(["/bin/true"], env={name: value})
