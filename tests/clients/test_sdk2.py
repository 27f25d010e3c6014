"""SDK v2's estimators in local mode, unmodified, with our image: what a script finds, and what comes back to the client."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import containers, printed, without_proxy
from clients.scripts import ADD_UP, LOOK
from clients.sdks import BUCKET, Answer, Artifacts, Client, write
from support.docker_cli import docker
from support.wheels import make_wheel

pytestmark = pytest.mark.docker
PYTORCH = "sagemaker.pytorch:PyTorch"
ESTIMATOR = "sagemaker.estimator:Estimator"
HUGGING_FACE = "sagemaker.huggingface:HuggingFace"

TWO_EACH = {"sagemaker_mpi_num_of_processes_per_host": 2}

Fit = Callable[..., tuple[Answer, Artifacts]]


@pytest.fixture
def fit(sdk2: Client, cpu_image: str, folder: Path, clients_folder: Path) -> Iterator[Fit]:
    """Runs one job of an estimator to its end."""

    def run(estimator: str = PYTORCH, *, source: Path | None = None, wait: bool = True, **job: Any) -> Any:
        arguments: dict[str, Any] = {"image_uri": cpu_image, "output_path": f"file://{folder}/out"}
        if source is not None:
            arguments |= {"entry_point": "train.py", "source_dir": str(source)}
        if estimator == HUGGING_FACE:
            arguments |= {"py_version": "py310"}
        arguments |= job.pop("arguments", {})
        arguments["environment"] = {"OMP_NUM_THREADS": "1", **arguments.get("environment", {})}
        (folder / "out").mkdir(exist_ok=True)
        sdk2.send("sdk2_fit", estimator=estimator, arguments=arguments, **job)
        if not wait:
            return Artifacts(folder / "out")
        answer = sdk2.answer()
        return replace(answer, printed=printed(clients_folder)), Artifacts(folder / "out")

    yield run
    if sdk2.pending:  # a test that failed while its job was running
        sdk2.kill()


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The condition's value once it is true. Raises AssertionError after five minutes."""
    deadline = time.monotonic() + 300
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)
    return value


# --- code, data, hyperparameters ------------------------------------------------------------------------------------------


@pytest.mark.spine
def test_a_script_gets_hyperparameters_of_every_type_and_its_channels(fit: Fit, folder: Path) -> None:
    data = write(folder / "data", a_csv="1,2\n")
    source = write(folder / "src", train=LOOK)
    before = sorted(path.name for path in source.iterdir())
    values = {"epochs": 3, "lr": 0.1, "name": "a b", "flag": True, "none": None, "lst": [1, "x"], "dct": {"a": 1}}
    text = {"empty": "", "digits": "07", "umlaut": "é", "quote": 'it\'s "so"', "k": "$HOME `id`; exit 3"}
    answer, out = fit(
        source=source,
        arguments={
            "hyperparameters": {**values, **text},
            "metric_definitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
            "environment": {"FOO": "bar"},
            "tags": [{"Key": "a", "Value": "b"}],
        },
        inputs={"train": f"file://{data}", "test": f"file://{data}/a.csv"},
        content_types={"train": "text/csv"},
    )
    assert answer.ok, answer.log + answer.printed
    seen = out.json("algo-1.0.json")
    pairs = dict(zip(seen["argv"][::2], seen["argv"][1::2], strict=True))
    assert pairs == {
        "--epochs": "3",
        "--lr": "0.1",
        "--name": "a b",
        "--flag": "True",
        "--none": "",
        "--lst": "[1, 'x']",
        "--dct": "a=1",
        "--empty": "",
        "--digits": "07",
        "--umlaut": "é",
        "--quote": 'it\'s "so"',
        "-k": "$HOME `id`; exit 3",
    }
    assert json.loads(seen["env"]["SM_HPS"]) == {**values, **text}
    assert seen["channels"] == {"train": ["a.csv"], "test": ["a.csv"]}
    assert json.loads(seen["env"]["SM_INPUT_DATA_CONFIG"])["train"]["ContentType"] == "text/csv"
    assert seen["env"]["FOO"] == "bar"
    assert re.fullmatch(r"algo-1-[a-z0-9]{5}", seen["env"]["SM_CURRENT_HOST"]) != seen["env"]["HOSTNAME"]
    assert "success" in out.names("output")
    assert "Reporting training SUCCESS" in answer.printed
    assert sorted(path.name for path in source.iterdir()) == before, "the source folder is the user's own"


def test_code_and_data_come_from_s3(fit: Fit, folder: Path, sdk2: Client) -> None:
    assert sdk2.call("s3", put={f"s3://{BUCKET}/data/one.csv": "1\n", f"s3://{BUCKET}/data/sub/two.csv": "2\n"}).ok
    answer, out = fit(
        source=write(folder / "src", train=LOOK, helper="value = 1\n"),
        local_code=False,
        arguments={"code_location": f"s3://{BUCKET}/code"},
        inputs={"train": f"s3://{BUCKET}/data/"},
    )
    assert answer.ok, answer.log + answer.printed
    seen = out.json("algo-1.0.json")
    assert seen["channels"] == {"train": ["one.csv", "sub"]}
    assert seen["env"]["SM_MODULE_DIR"].startswith(f"s3://{BUCKET}/code/")
    assert re.search(rf"downloading s3://{BUCKET}/code/.*sourcedir.tar.gz", answer.printed)


def test_the_model_goes_to_s3(fit: Fit, folder: Path, sdk2: Client) -> None:
    answer, _ = fit(source=write(folder / "src", train=LOOK), arguments={"output_path": f"s3://{BUCKET}/models"})
    assert answer.ok, answer.log + answer.printed
    keys = sdk2.call("s3", list=f"s3://{BUCKET}/models/{answer.data['job_name']}/output/").data["keys"]
    assert keys == ["model.tar.gz", "output.tar.gz"]


def test_code_is_a_channel_under_network_isolation(fit: Fit, folder: Path) -> None:
    answer, out = fit(
        source=write(folder / "src", train=LOOK), local_code=False, arguments={"enable_network_isolation": True}
    )
    assert answer.ok, answer.log + answer.printed
    assert out.json("algo-1.0.json")["env"]["SM_MODULE_DIR"] == "/opt/ml/input/data/code/sourcedir.tar.gz"


def test_requirements_beside_the_script_are_installed(fit: Fit, folder: Path) -> None:
    source = write(folder / "src", train="import tiny_requirement\nprint('version', tiny_requirement.VERSION)\n")
    make_wheel(source, "tiny_requirement", "1.0")
    (source / "requirements.txt").write_text("--no-index\n--find-links .\ntiny_requirement\n")
    answer, _ = fit(source=source)
    assert answer.ok, answer.log + answer.printed
    assert "version 1.0" in answer.printed


def test_an_estimator_with_a_source_folder_encodes_its_values_as_json(fit: Fit, folder: Path) -> None:
    answer, out = fit(
        ESTIMATOR, source=write(folder / "src", train=LOOK), arguments={"hyperparameters": {"flag": True, "text": "1.10"}}
    )
    assert answer.ok, answer.log + answer.printed
    assert out.json("algo-1.0.json")["argv"] == ["--flag", "True", "--text", "1.10"]


def test_an_estimator_with_a_script_alone_sends_pythons_spelling(fit: Fit, folder: Path) -> None:
    source = write(folder / "src", train=LOOK)
    answer, out = fit(
        ESTIMATOR,
        local_code=False,
        arguments={"entry_point": f"{source}/train.py", "hyperparameters": {"flag": True, "none": None, "lst": [1, "x"]}},
    )
    assert answer.ok, answer.log + answer.printed
    assert out.json("algo-1.0.json")["argv"] == ["--flag", "True", "--lst", "[1, 'x']", "--none", "None"]


def test_an_estimator_without_code_runs_what_the_code_channel_holds(fit: Fit, folder: Path) -> None:
    answer, out = fit(
        ESTIMATOR,
        arguments={"hyperparameters": {"sagemaker_program": "train.py", "depth": 2}},
        inputs={"code": f"file://{write(folder / 'src', train=LOOK)}"},
    )
    assert answer.ok, answer.log + answer.printed
    assert out.json("algo-1.0.json")["argv"] == ["--depth", "2"]


def test_a_container_entry_point_replaces_train(fit: Fit) -> None:
    answer, out = fit(
        ESTIMATOR,
        arguments={
            "container_entry_point": ["bash", "-c"],
            "container_arguments": ["python -c 'print(6 * 7)' > /opt/ml/model/answer; pip --version; exec train --version"],
        },
    )
    assert answer.ok, answer.log + answer.printed
    assert out.read("model", "answer") == "42\n"
    assert re.search(r"^pip \d", answer.printed, re.MULTILINE) and re.search(r"^trainshed \d", answer.printed, re.MULTILINE)


# --- distributions --------------------------------------------------------------------------------------------------------


def ranks(out: Artifacts) -> dict[str, tuple[str, ...]]:
    """host.rank of every rank -> LOCAL_RANK and WORLD_SIZE."""
    found = {}
    for name in out.names("model"):
        env = out.json(name)["env"]
        found[name.removesuffix(".json")] = (env["LOCAL_RANK"], env["WORLD_SIZE"])
    return found


@pytest.mark.parametrize(
    ("estimator", "distribution", "flag"),
    [
        (PYTORCH, {"pytorchddp": {"enabled": True}}, "sagemaker_distributed_dataparallel_enabled"),
        (HUGGING_FACE, {"pytorchddp": {"enabled": True}}, "sagemaker_pytorch_ddp_enabled"),
        (PYTORCH, {"smdistributed": {"dataparallel": {"enabled": True}}}, "sagemaker_distributed_dataparallel_enabled"),
        (HUGGING_FACE, {"torch_distributed": {"enabled": True}}, "sagemaker_torch_distributed_enabled"),
    ],
    ids=["PyTorch pytorchddp", "HuggingFace pytorchddp", "smddp", "HuggingFace torch_distributed"],
)
def test_every_name_of_data_parallel_starts_ranks_of_torch(
    fit: Fit, folder: Path, estimator: str, distribution: dict[str, Any], flag: str
) -> None:
    answer, out = fit(
        estimator,
        source=write(folder / "src", train=LOOK),
        arguments={"distribution": distribution, "hyperparameters": TWO_EACH},
    )
    assert answer.ok, answer.log + answer.printed
    assert ranks(out) == {"algo-1.0": ("0", "2"), "algo-1.1": ("1", "2")}
    assert flag in answer.printed or flag in out.json("algo-1.0.json")["env"]["SM_FRAMEWORK_PARAMS"]


@pytest.mark.parametrize("distribution", [{"torch_distributed": {"enabled": True}}, {"mpi": {"enabled": True}}])
def test_a_distribution_without_a_count_starts_one_rank_on_each_cpu_host(
    fit: Fit, folder: Path, distribution: dict[str, Any]
) -> None:
    answer, out = fit(
        source=write(folder / "src", train=LOOK), arguments={"instance_count": 2, "distribution": distribution}
    )
    assert answer.ok, answer.log + answer.printed
    assert ranks(out) == {"algo-1.0": ("0", "2"), "algo-2.1": ("0", "2")}


@pytest.mark.spine
def test_torch_distributed_on_two_hosts_adds_up(fit: Fit, folder: Path) -> None:
    answer, out = fit(
        source=write(folder / "src", train=ADD_UP),
        arguments={
            "instance_count": 2,
            "distribution": {"torch_distributed": {"enabled": True}},
            "hyperparameters": {"sagemaker_mpi_num_of_processes_per_host": 1},
        },
    )
    assert answer.ok, answer.log + answer.printed
    assert [out.read("model", name) for name in out.names("model")] == ["3 of 2", "3 of 2"]


@pytest.mark.parametrize("hosts", [1, 2])
def test_mpi_starts_ranks_with_the_users_options(fit: Fit, folder: Path, hosts: int) -> None:
    mpi = {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "-x TOLD=yes --mca mpi_show_mca_params 0"}
    answer, out = fit(
        source=write(folder / "src", train=LOOK), arguments={"instance_count": hosts, "distribution": {"mpi": mpi}}
    )
    assert answer.ok, answer.log + answer.printed
    world = str(2 * hosts)
    expected = {f"algo-{n // 2 + 1}.{n}": (str(n % 2), world) for n in range(2 * hosts)}
    assert ranks(out) == expected
    env = out.json("algo-1.0.json")["env"]
    assert (env["TOLD"], env["OMPI_COMM_WORLD_SIZE"]) == ("yes", world)


def test_model_parallel_of_torch_hands_its_parameters_to_torchs_ranks(fit: Fit, folder: Path) -> None:
    parameters = {"tensor_parallel_degree": 1, "hybrid_shard_degree": 2}
    answer, out = fit(
        source=write(folder / "src", train=LOOK),
        arguments={
            "distribution": {
                "torch_distributed": {"enabled": True},
                "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
            },
            "hyperparameters": TWO_EACH,
        },
    )
    assert answer.ok, answer.log + answer.printed
    assert ranks(out) == {"algo-1.0": ("0", "2"), "algo-1.1": ("1", "2")}
    assert json.loads(out.json("algo-1.1.json")["env"]["SM_HP_MP_PARAMETERS"]) == parameters


def test_model_parallel_of_mpi_hands_its_parameters_to_mpis_ranks(fit: Fit, folder: Path) -> None:
    parameters = {"partitions": 2, "microbatches": 2, "ddp": True}
    answer, out = fit(
        source=write(folder / "src", train="import smdistributed.modelparallel.torch as smp\nsmp.init()\n" + LOOK),
        arguments={
            "distribution": {
                "mpi": {"enabled": True, "processes_per_host": 2},
                "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
            },
        },
    )
    assert answer.ok, answer.log + answer.printed
    assert ranks(out) == {"algo-1.0": ("0", "2"), "algo-1.1": ("1", "2")}
    env = out.json("algo-1.1.json")["env"]
    assert json.loads(env["SM_HP_MP_PARAMETERS"]) == parameters
    assert env["OMPI_COMM_WORLD_RANK"] == "1"


def test_a_distribution_that_is_not_served_fails_with_its_name(fit: Fit, folder: Path) -> None:
    answer, out = fit(
        ESTIMATOR,
        source=write(folder / "src", train=LOOK),
        arguments={"hyperparameters": {"trainshed_distribution": "gossip"}},
    )
    assert not answer.ok, answer.log
    assert "trainshed_distribution" in out.read("output", "failure")
    assert "must be one of" in out.read("output", "failure")


# --- how jobs end ---------------------------------------------------------------------------------------------------------


def test_a_failing_script_fails_the_client_with_its_status_and_reason(fit: Fit, folder: Path) -> None:
    script = "import sys\ntry:\n    open('/opt/ml/input/data/trian/a.csv')\nfinally:\n    print('ending')\n"
    answer, out = fit(
        source=write(folder / "src", train=script),
        inputs={"train": f"file://{write(folder / 'data', a_csv='1')}"},
    )
    assert not answer.ok
    assert answer.error.startswith("RuntimeError: Failed to run") and "exited with code: 1" in answer.error
    reason = out.read("output", "failure")
    assert reason.startswith("UserError: ") and "FileNotFoundError" in reason
    assert "train.py:3" in reason and "did you mean 'train'?" in reason
    assert "Reporting training FAILURE" in answer.printed
    assert "success" not in out.names("output")


def test_the_scripts_own_exit_status_reaches_the_client(fit: Fit, folder: Path) -> None:
    answer, _ = fit(source=write(folder / "src", train="import sys; sys.exit(42)\n"))
    assert "exited with code: 42" in answer.error


def test_bytes_that_are_no_text_do_not_kill_the_client(fit: Fit, folder: Path) -> None:
    script = "import os\nos.write(1, b'latin \\xe9 one\\n')\nos.write(2, b'half \\xf0\\x9f\\x98\\n')\nprint('done é')\n"
    answer, _ = fit(source=write(folder / "src", train=script))
    assert answer.ok, answer.log + answer.printed
    assert "latin \\xe9 one" in answer.printed and "done é" in answer.printed


def test_hosts_leave_together(fit: Fit, folder: Path) -> None:
    """Compose ends all containers when the first one exits: a host that is done must wait for the others."""
    script = """\
import os, time
host = os.environ["SM_CURRENT_HOST"]
folder = os.environ["SM_MODEL_DIR"]
if host.startswith("algo-2"):
    open(f"{folder}/second", "w").write("done")
else:
    while not os.path.exists(f"{folder}/second"):
        time.sleep(0.05)
    time.sleep(3)  # long after the other script's end
    open(f"{folder}/first", "w").write("done")
"""
    answer, out = fit(source=write(folder / "src", train=script), arguments={"instance_count": 2})
    assert answer.ok, answer.log + answer.printed
    assert out.names("model") == ["first", "second"]
    assert answer.printed.count("Reporting training SUCCESS") == 2


def test_a_host_that_fails_ends_the_other_with_its_reason(fit: Fit, folder: Path) -> None:
    script = """\
import os, time
if os.environ["SM_CURRENT_HOST"].startswith("algo-2"):
    raise KeyError("on the second")
time.sleep(600)
"""
    answer, out = fit(source=write(folder / "src", train=script), arguments={"instance_count": 2})
    assert not answer.ok
    assert "KeyError: 'on the second'" in out.read("output", "failure")


def test_a_stopped_job_saves_and_its_model_comes_back(fit: Fit, folder: Path, clients_folder: Path, sdk2: Client) -> None:
    script = """\
import os, signal, sys, time
def save(*_):
    open(os.environ["SM_MODEL_DIR"] + "/saved", "w").write("in time")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(os.environ["SM_MODEL_DIR"] + "/ready", "w").close()
while True:
    time.sleep(0.1)
"""
    place = sdk2.folder / "tmp"
    out = fit(source=write(folder / "src", train=script), wait=False)
    wait_for(lambda: list(place.rglob("model/ready")), "the script to be ready")
    # As compose does on Ctrl-C, and when another host has ended. A signal to compose itself may crash that of Debian 13.
    (container,) = containers(clients_folder)
    docker("stop", "--time", "120", container, timeout=240)
    answer = sdk2.answer()
    assert answer.ok, answer.log
    assert out.read("model", "saved") == "in time"
    assert not {"success", "failure"} & set(out.names("output"))


def test_intermediate_output_is_in_s3_while_the_job_runs(
    fit: Fit, folder: Path, clients_folder: Path, sdk2: Client, moto: str
) -> None:
    script = """\
import os, time
folder = os.environ["SM_OUTPUT_INTERMEDIATE_DIR"]
os.makedirs(f"{folder}/deep/er")
open(f"{folder}/written.txt", "w").write("first")
open(f"{folder}/deep/er/half", "w").write("renamed")
os.rename(f"{folder}/deep/er/half", f"{folder}/deep/er/whole.txt")
while not os.path.exists("go"):
    time.sleep(0.05)
open(f"{folder}/written.txt", "w").write("second")
open(f"{folder}/last.txt", "w").write("last")
"""
    source = write(folder / "src", train=script)
    uri = f"s3://{BUCKET}/intermediate"
    arguments = {"hyperparameters": {"sagemaker_s3_output": uri}, "base_job_name": "inter", "output_path": uri}
    fit(source=source, arguments=arguments, wait=False)

    def uploaded() -> list[str]:
        with without_proxy().open(f"{moto}/{BUCKET}?list-type=2&prefix=intermediate/", timeout=60) as answer:
            return re.findall(r"<Key>intermediate/inter-[^/]*/output/intermediate/([^<]*)</Key>", answer.read().decode())

    wait_for(lambda: {"written.txt", "deep/er/whole.txt"} <= set(uploaded()), "files in S3")
    (source / "go").touch()
    answer = sdk2.answer()
    assert answer.ok, answer.log + answer.printed
    assert {"deep/er/whole.txt", "last.txt", "written.txt"} <= set(uploaded())
    prefix = f"s3://{BUCKET}/intermediate/{answer.data['job_name']}/output/intermediate/"
    assert sdk2.call("s3", download=f"{prefix}written.txt", to=str(folder / "back")).ok
    assert (folder / "back").read_text() == "second"
    assert "had left running" not in printed(clients_folder), "the uploader is train's own"


def test_intermediate_output_stays_where_the_sdk_looks_after_it(fit: Fit, folder: Path) -> None:
    script = "import os\nopen(os.environ['SM_OUTPUT_INTERMEDIATE_DIR'] + '/a.txt', 'w').write('a')\n"
    answer, _ = fit(
        source=write(folder / "src", train=script),
        arguments={"hyperparameters": {"sagemaker_s3_output": f"file://{folder}/out"}},
    )
    assert answer.ok, answer.log + answer.printed
    assert (folder / "out/output/intermediate/a.txt").read_text() == "a"
    assert "upload" not in answer.printed


# --- scripts and images made for Amazon's toolkit -----------------------------------------------------------------------


def test_a_launcher_of_the_images_own_runs_and_starts_the_script(fit: Fit, folder: Path) -> None:
    launcher = """\
from sagemaker_training import entry_point, environment
from sagemaker_containers.beta.framework import training_env
def main():
    env = environment.Environment()
    assert env.hosts == training_env().hosts
    print("launching", env.user_entry_point, env.to_cmd_args())
    entry_point.run(env.module_dir, env.user_entry_point, env.to_cmd_args(), env.to_env_vars())
"""
    answer, out = fit(
        source=write(folder / "src", train=LOOK, launcher=launcher),
        arguments={"hyperparameters": {"epochs": 3}, "environment": {"SAGEMAKER_TRAINING_MODULE": "launcher:main"}},
    )
    assert answer.ok, answer.log + answer.printed
    assert "launching train.py ['--epochs', '3']" in answer.printed
    assert out.json("algo-1.0.json")["argv"] == ["--epochs", "3"]


def test_a_job_leaves_no_running_container(sdk2: Client, clients_folder: Path) -> None:
    left = containers(clients_folder)
    states = {docker("inspect", "--format", "{{.State.Status}}", one).stdout.strip() for one in left}
    assert "running" not in states
