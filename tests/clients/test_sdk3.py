"""SDK v3's ModelTrainer in local mode, unmodified, with our image: its drivers find in it what they call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import printed
from clients.scripts import ADD_UP, LOOK
from clients.sdks import BUCKET, Answer, Artifacts, Client, write
from support.docker_cli import docker
from support.wheels import make_wheel

pytestmark = pytest.mark.docker

GATHER = """\
import json, os
from mpi4py import MPI
world = MPI.COMM_WORLD
hosts = world.gather((os.environ["SM_CURRENT_HOST"], world.rank), root=0)
if world.rank == 0:
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "ranks.json"), "w") as file:
        json.dump(hosts, file)
"""

Train = Callable[..., tuple[Answer, Artifacts]]


@pytest.fixture
def train(sdk3: Client, cpu_image: str, folder: Path, clients_folder: Path) -> Iterator[Train]:
    """Runs one job of a ModelTrainer to its end."""

    def run(**job: Any) -> tuple[Answer, Artifacts]:
        root = folder / "root"
        root.mkdir()
        job["environment"] = {"OMP_NUM_THREADS": "1", **job.get("environment", {})}
        answer = sdk3.call("sdk3_train", image=cpu_image, name="job", container_root=str(root), **job)
        return replace(answer, printed=printed(clients_folder)), Artifacts(root / "compressed_artifacts")

    yield run
    if sdk3.pending:
        sdk3.kill()


@pytest.mark.spine
def test_a_script_gets_hyperparameters_of_every_type_and_its_channels(train: Train, folder: Path) -> None:
    data = write(folder / "data", a_csv="1,2\n")
    source = write(folder / "src", train=LOOK)
    values = {"epochs": 3, "lr": 0.1, "name": "a b", "flag": True, "lst": [1, "x"], "dct": {"a": 1}, "learning-rate": "1e-3"}
    answer, out = train(
        source={"source_dir": str(source), "entry_script": "train.py"},
        hyperparameters=values,
        environment={"FOO": "bar"},
        inputs={"train": str(data)},
    )
    assert answer.ok, answer.error + answer.printed
    seen = out.json("algo-1.0.json")
    assert dict(zip(seen["argv"][::2], seen["argv"][1::2], strict=True)) == {
        "--epochs": "3",
        "--lr": "0.1",
        "--name": "a b",
        "--flag": "true",
        "--lst": '[1, "x"]',
        "--dct": '{"a": 1}',
        "--learning-rate": "0.001",
    }
    assert seen["channels"]["train"] == ["a.csv"]
    assert (seen["env"]["FOO"], seen["env"]["SM_HP_LEARNING_RATE"]) == ("bar", "0.001")
    assert seen["cwd"] == "/opt/ml/input/data/code"


def test_a_command_runs_with_its_arguments_and_requirements(train: Train, folder: Path) -> None:
    source = write(
        folder / "src", use="import tiny_requirement, sys\nprint('version', tiny_requirement.VERSION, sys.argv[1:])\n"
    )
    make_wheel(source, "tiny_requirement", "1.0")
    (source / "requirements.txt").write_text("--no-index\n--find-links .\ntiny_requirement\n")
    answer, _ = train(
        source={
            "source_dir": str(source),
            "requirements": "requirements.txt",
            "command": "python use.py 'two words' $SM_NUM_GPUS",
        }
    )
    assert answer.ok, answer.error + answer.printed
    assert "version 1.0 ['two words', '0']" in answer.printed


def test_a_shell_script_runs_train_itself(train: Train, folder: Path) -> None:
    """A script of the job's may use all that is ours, too: `train` on the job that it was given."""
    script = '#!/bin/bash\nset -e\npython -m pip --version\ntrain --version\necho "shell $SM_HP_DEPTH"\n'
    answer, _ = train(
        source={"source_dir": str(write(folder / "src", go_sh=script)), "entry_script": "go.sh"},
        hyperparameters={"depth": 2},
    )
    assert answer.ok, answer.error + answer.printed
    assert "trainshed " in answer.printed and "shell 2" in answer.printed


def test_torchrun_starts_two_ranks(train: Train, folder: Path) -> None:
    answer, out = train(
        source={"source_dir": str(write(folder / "src", train=LOOK)), "entry_script": "train.py"},
        distributed={"kind": "Torchrun", "process_count_per_node": 2},
    )
    assert answer.ok, answer.error + answer.printed
    env = [out.json(f"algo-1.{rank}.json")["env"] for rank in (0, 1)]
    assert [(e["LOCAL_RANK"], e["WORLD_SIZE"]) for e in env] == [("0", "2"), ("1", "2")]
    assert env[0]["NCCL_SOCKET_IFNAME"] == "eth0", "not ethwe, which the SDK asks for and no container has"
    assert "network interface 'ethwe' does not exist" in answer.printed


def test_torchrun_on_two_hosts_adds_up(train: Train, folder: Path) -> None:
    answer, out = train(
        source={"source_dir": str(write(folder / "src", train=ADD_UP)), "entry_script": "train.py"},
        distributed={"kind": "Torchrun", "process_count_per_node": 1},
        compute={"instance_count": 2},
    )
    assert answer.ok, answer.error + answer.printed
    assert [out.read("model", name) for name in out.names("model")] == ["3 of 2", "3 of 2"]


def test_mpi_runs_although_the_sdk_names_an_interface_that_is_not_there(train: Train, folder: Path) -> None:
    answer, out = train(
        source={"source_dir": str(write(folder / "src", train=GATHER)), "entry_script": "train.py"},
        distributed={"kind": "MPI", "process_count_per_node": 2, "mpi_additional_options": ["--oversubscribe"]},
    )
    assert answer.ok, answer.error + answer.printed
    assert out.json("ranks.json") == [["algo-1", 0], ["algo-1", 1]]
    assert "network interface 'ethwe' does not exist" in answer.printed


def test_mpi_on_two_hosts_has_ranks_on_both(train: Train, folder: Path) -> None:
    """By ssh from root to root with a key of this very job; the SDK asks for two ranks where four are meant."""
    answer, out = train(
        source={"source_dir": str(write(folder / "src", train=GATHER)), "entry_script": "train.py"},
        distributed={"kind": "MPI", "process_count_per_node": 2},
        compute={"instance_count": 2},
    )
    assert answer.ok, answer.error + answer.printed
    assert out.json("ranks.json") == [["algo-1", 0], ["algo-1", 1], ["algo-2", 2], ["algo-2", 3]]


def test_the_exit_status_of_a_script_reaches_the_client(train: Train, folder: Path) -> None:
    answer, out = train(
        source={"source_dir": str(write(folder / "src", train="import sys; sys.exit(7)\n")), "entry_script": "train.py"}
    )
    assert not answer.ok
    assert "exited with code: 7" in answer.error
    assert "failure" in out.names("output")


def test_without_source_code_train_runs_what_hyperparameters_name(train: Train, folder: Path) -> None:
    source = write(folder / "src", train=LOOK)
    answer, out = train(
        hyperparameters={"sagemaker_program": "train.py", "sagemaker_submit_directory": f"file://{source}", "epochs": 3}
    )
    assert answer.ok, answer.error + answer.printed
    assert out.json("algo-1.0.json")["argv"] == ["--epochs", "3"]
    assert "Reporting training SUCCESS" in answer.printed
    assert "success" in out.names("output")


def test_without_source_code_a_failure_has_its_reason(train: Train, folder: Path) -> None:
    source = write(folder / "src", train="raise ValueError('no good')\n")
    answer, out = train(hyperparameters={"sagemaker_program": "train.py", "sagemaker_submit_directory": f"file://{source}"})
    assert "exited with code: 1" in answer.error
    assert "ValueError: no good" in out.read("output", "failure").splitlines()[0]


def test_data_comes_from_s3(train: Train, folder: Path, sdk3: Client) -> None:
    assert sdk3.call("s3", put={f"s3://{BUCKET}/v3/one.csv": "1\n"}).ok
    answer, out = train(
        source={"source_dir": str(write(folder / "src", train=LOOK)), "entry_script": "train.py"},
        inputs={"train": f"s3://{BUCKET}/v3/"},
        session=True,
    )
    assert answer.ok, answer.error + answer.printed
    assert out.json("algo-1.0.json")["channels"]["train"] == ["one.csv"]


def test_files_of_root_can_be_opened_to_all_as_the_sdk_does_it(cpu_image: str, folder: Path) -> None:
    """Where the client may not delete what the container has written, the SDK runs chmod in our image."""
    write(folder / "rooted", a_txt="a")
    (folder / "rooted/a.txt").chmod(0o600)
    docker("run", "--rm", "-v", f"{folder}/rooted:/delete", cpu_image, "chmod", "-R", "777", "/delete")
    assert (folder / "rooted/a.txt").stat().st_mode & 0o777 == 0o777
    assert json.loads(docker("image", "inspect", "--format", "{{json .Config.Entrypoint}}", cpu_image).stdout) is None
