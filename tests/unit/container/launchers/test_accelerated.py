"""Accelerate's and DeepSpeed's files: what is refused before Accelerate is asked, and which are noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainshed.base.errors import LaunchError
from trainshed.container.launchers.accelerate_files import candidates, note
from trainshed.container.launchers.accelerated.config_file import read
from trainshed.container.launchers.launch import Launch
from trainshed.container.program.locate import Program
from trainshed.contract.cluster import Cluster, Hardware
from trainshed.contract.reading import read_job

CLUSTER = Cluster(hosts=("algo-1", "algo-2"), current_host="algo-1", processes_per_host=2, hardware=Hardware(cpus=8, gpus=2))
GOOD = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("distributed_type: [MULTI_GPU\nmixed_precision: bf16\n", "not YAML: line 2"),
        ("a: *unknown\n", "not YAML: line 1"),
        ("\0", "not YAML"),
        ("", "no `name: value` lines"),
        ("- distributed_type\n", "no `name: value` lines"),
        ("3: MULTI_GPU\n", "no `name: value` lines"),
        ("distributed_type: XLA\n", "for TPUs"),
        ("distributed_type: TPU\n", "for TPUs"),
        ("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n", "send jobs to SageMaker"),
        ("distributed_type: MULTI_GPU\nmixed_precision: no\n", "read by YAML as false"),
        ("x: " + "[" * 5000, "not YAML"),
        ("x: " + "y" * 2_000_000, "more than a megabyte"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_words(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)

    with pytest.raises(LaunchError) as error:
        read("a.yaml", str(tmp_path))
    assert "a.yaml" in error.value.message and told in error.value.message and len(error.value.message) < 500


def test_bytes_that_are_no_text_and_json_that_is_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfa\xfd distributed_type")
    (tmp_path / "a.json").write_bytes(b"{'distributed_type': 1}")

    with pytest.raises(LaunchError, match="not YAML"):
        read("a.yaml", str(tmp_path))
    with pytest.raises(LaunchError, match="not JSON"):
        read("a.json", str(tmp_path))


def test_a_file_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/default_config.yaml").write_text(GOOD)

    with pytest.raises(LaunchError) as error:
        read("default_config.yaml", str(tmp_path))
    assert "cannot read" in error.value.message and "conf/default_config.yaml" in error.value.hint
    with pytest.raises(LaunchError, match="cannot read"):
        read("conf", str(tmp_path))


@pytest.mark.parametrize(
    ("line", "told"),
    [("gpu_ids: 0,1,2", "names GPU 2, but this host has 2"), ("gpu_ids: '1'", "names 1 GPU"), ("gpu_ids: 1", "names 1 GPU")],
)
def test_gpus_that_the_host_has_not_are_refused(line: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{GOOD}{line}\n")

    with pytest.raises(LaunchError, match=told):
        read("a.yaml", str(tmp_path)).held_against(CLUSTER)


def test_what_the_launcher_decides_is_one_note_and_none_where_the_file_agrees(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{GOOD}num_processes: 16\nnum_machines: 2\nmain_process_ip: 10.0.0.1\n")
    (tmp_path / "b.yaml").write_text(f"{GOOD}num_processes: 4\nnum_machines: 2\ngpu_ids: all\n")

    (told,) = read("a.yaml", str(tmp_path)).held_against(CLUSTER)
    assert "num_processes: 16, main_process_ip: 10.0.0.1 has no effect" in told and "2 rank(s) on each of 2 host(s)" in told
    assert read("b.yaml", str(tmp_path)).held_against(CLUSTER) == ()


def launch(folder: Path, *arguments: str) -> Launch:
    """A job of `train.py` in the folder."""
    job = read_job({"SAGEMAKER_BASE_DIR": str(folder / "ml"), "SAGEMAKER_PROGRAM": "train.py"})
    program = Program(name="train.py", kind="script", command=("python", "train.py"), folder=str(folder))
    return Launch(job=job, cluster=CLUSTER, program=program, arguments=arguments, environment={}, scratch="")


def test_the_only_file_is_noted_and_two_are_not(tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "configs").mkdir(parents=True)
    (code / "train.py").write_text("import deepspeed\n")
    (code / "hydra.yaml").write_text("defaults: []\n")
    assert note(launch(code)) == ""

    (code / "zero3.json").write_text('{"zero_optimization": {"stage": 3}}')
    assert "trainshed_accelerate = zero3.json" in note(launch(code))
    assert note(launch(code, "--deepspeed", "zero3.json")) == ""
    (code / "train.py").write_text("deepspeed.initialize(config='zero3.json')\n")
    assert note(launch(code)) == ""

    (code / "configs/accelerate.yaml").write_text(GOOD)
    assert "trainshed_accelerate = configs/accelerate.yaml" in note(launch(code))
    (code / "default_config.yaml").write_text(GOOD)
    assert note(launch(code)) == ""
    assert candidates(str(code)) == ["default_config.yaml", "zero3.json", "configs/accelerate.yaml"]


def test_a_folder_full_of_data_is_not_searched_to_its_end(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number:03}.json").write_text('{"zero_optimization": 1}')
    (tmp_path / "pipe.yaml").mkdir()
    os.mkfifo(tmp_path / "000a.yaml")
    (tmp_path / "000b.yaml").symlink_to("000b.yaml")
    (tmp_path / "000c.yaml").symlink_to("nowhere")

    assert len(candidates(str(tmp_path))) == 47
    assert candidates(str(tmp_path / "none")) == []
