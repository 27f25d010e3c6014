"""The images themselves: what is on PATH, who may run them, what they must not carry, what a user can build on them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import image_build
from support.docker_cli import Containers, Job, docker
from support.wheels import make_wheel, own_wheel

needs_docker = pytest.mark.docker
ROOT = image_build.ROOT
USERS = {"root": "", "uid 1000": "1000:1000", "a uid without a name": "4242:4242"}

# Prints how many modules are loaded and which of them have no bytecode of the very source that lies there.
STALE_BYTECODE = """\
import importlib.util, os, re, sys, torch, trainshed, trainshed.container.main

def fresh(path):
    cached = importlib.util.cache_from_source(path)
    if not os.path.exists(cached):
        return False
    with open(cached, "rb") as file:
        mtime_and_size = file.read(16)[8:]
    source = os.stat(path)
    return mtime_and_size == int(source.st_mtime).to_bytes(4, "little") + source.st_size.to_bytes(4, "little")

paths = [str(getattr(module, "__file__", "")) for module in list(sys.modules.values())]
paths = [path for path in paths if re.fullmatch("/.*[.]py", path)]  # torch.ops and its like claim a file without a folder
print(len(paths), sorted(path for path in paths if not fresh(path)))
"""

BUILDKIT_ONLY = (r"^# *syntax=", "--mount=", r"<<-?['\"]?[A-Z]", "^COPY .*--(chmod|link|parents|exclude)", "^ADD .*--")

SUM_OVER_RANKS = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} total {int(total)}")
dist.destroy_process_group()
"""

GREET_ONE_CLIENT = """\
import socket
server = socket.create_server(("", 7777))
print("ready")
client, _ = server.accept()
client.sendall(b"hello from algo-1")
"""

WAIT_FOR_SIGTERM = """\
import signal, sys, time

def leave(*_):
    open("/opt/ml/model/saved", "w").write("in time")
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
print("waiting", flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture(scope="module")
def config(cpu_image: str) -> dict[str, Any]:
    """The image's own settings, as `docker inspect` shows them."""
    return json.loads(image_build.inspect(cpu_image, "{{json .Config}}"))


@pytest.fixture(params=list(USERS.values()), ids=list(USERS))
def user(request: pytest.FixtureRequest) -> str:
    """Each kind of user that a container may run as."""
    return request.param


@needs_docker
def test_the_image_has_its_commands_in_its_own_environment(container: Containers) -> None:
    names = ["python", "python3", "pip", "pip3", "torchrun", "train", "trainshed", "demo", "doctor"]
    done = container("bash", "-c", f"command -v {' '.join(names)}")
    assert done.stdout.split() == [f"/opt/venv/bin/{name}" for name in names], done.output


@needs_docker
def test_the_image_has_the_system_commands_that_sdk_drivers_call(container: Containers) -> None:
    names = ["bash", "sh", "cat", "chmod", "tar", "mpirun", "ssh", "ssh-keygen", "sshd"]
    done = container("bash", "-c", f"command -v {' '.join(names)}")
    assert [Path(line).name for line in done.stdout.split()] == names
    assert "/usr/sbin/sshd" in done.stdout.split()


@needs_docker
def test_train_is_the_default_command_and_nothing_stands_before_it(config: dict[str, Any]) -> None:
    assert config["Cmd"] == ["train"]
    assert not config.get("Entrypoint")
    assert config["StopSignal"] == "SIGTERM"
    assert config.get("User", "root") == "root"
    assert not config.get("WorkingDir", "").startswith("/opt/ml")


@needs_docker
def test_python_writes_its_output_at_once_and_keeps_its_bytecode(config: dict[str, Any]) -> None:
    env = dict(entry.split("=", 1) for entry in config["Env"])
    assert env["PYTHONUNBUFFERED"] == "1"
    assert "PYTHONDONTWRITEBYTECODE" not in env
    assert env["PATH"].split(":")[0] == "/opt/venv/bin"


@needs_docker
def test_the_image_says_what_it_is_and_what_it_was_made_of(config: dict[str, Any]) -> None:
    mark = "org.opencontainers.image."  # the local base image has a label of its own
    labels = {key: value for key, value in config["Labels"].items() if key.startswith(mark)}
    _, _, revision = image_build.build_cpu().partition(":")
    assert {key.removeprefix(mark): value for key, value in labels.items()} == {
        "title": "trainshed cpu",
        "description": "Training image: docker run IMAGE train",
        "licenses": "Apache-2.0",
        "version": "0.0.0+test",
        "revision": revision,
        "source": "this checkout",
        "base.name": labels[f"{mark}base.name"],
    }


@needs_docker
@pytest.mark.parametrize(
    "user",
    [USERS["a uid without a name"], *(pytest.param(USERS[name], marks=pytest.mark.heavy) for name in ("root", "uid 1000"))],
)
def test_any_user_can_import_what_the_image_ships(container: Containers, user: str) -> None:
    modules = "torch, transformers, accelerate, sklearn.datasets, safetensors.torch, PIL.Image, numpy"
    done = container(
        "python",
        "-c",
        f"import {modules}; print(torch.ones(2).sum())",
        user=user,
        options=("--read-only", "--tmpfs", "/tmp"),
    )
    assert (done.status, done.stdout) == (0, "tensor(2.)\n"), done.output


@needs_docker
def test_any_user_can_write_below_home_and_an_unmounted_opt_ml(container: Containers, user: str) -> None:
    command = "mkdir -p ~/.cache/huggingface ~/.config/x ~/.local/lib /opt/ml/model && touch /opt/ml/model/a && echo ok"
    done = container("bash", "-c", command, user=user, mount=False)
    assert (done.status, done.stdout) == (0, "ok\n"), done.output


@needs_docker
def test_any_user_can_install_a_requirement(container: Containers, user: str) -> None:
    job = container.job()
    make_wheel(job.folder, "tiny_requirement", "1.0")
    job.write({"requirements.txt": "tiny_requirement\n"}).open_to_all()
    install = "pip install --quiet --no-index --find-links /opt/ml -r /opt/ml/requirements.txt"
    use = "python -c 'import tiny_requirement; print(tiny_requirement.VERSION)'"
    done = container("bash", "-c", f"{install} && {use}", job=job, user=user)
    assert (done.status, done.stdout) == (0, "1.0\n"), done.output


@needs_docker
def test_every_module_that_torch_and_trainshed_load_has_bytecode(container: Containers) -> None:
    """Without it a user who may not write to the image compiles them at every start."""
    done = container("python", "-B", "-c", STALE_BYTECODE, user="1000:1000")
    count, _, stale = done.stdout.partition(" ")
    assert int(count) > 500, done.output
    assert stale == "[]\n"


@pytest.mark.safety
@pytest.mark.spine
@needs_docker
def test_the_image_carries_no_host_key_and_no_private_key(container: Containers) -> None:
    search = "grep -rIlE --exclude-dir=proc --exclude-dir=sys '^-----BEGIN [A-Z ]*PRIVATE KEY' / 2>/dev/null"
    assert container("bash", "-c", f"ls /etc/ssh | grep host; {search}; echo done").stdout == "done\n"


@pytest.mark.safety
@needs_docker
def test_where_the_packages_came_from_leaves_no_trace_in_the_history(container: Containers, cpu_image: str) -> None:
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", cpu_image).stdout
    assert "PIP_" not in history.replace("PIP_DISABLE_PIP_VERSION_CHECK", "").replace("PIP_ROOT_USER_ACTION", "")
    assert "PIP_INDEX_URL" not in container("env").stdout


@needs_docker
def test_trainshed_is_one_small_layer_on_top(cpu_image: str) -> None:
    sizes = docker("history", "--human=false", "--format", "{{.Size}}", cpu_image).stdout.split()
    layers = [int(size) for size in sizes if size != "0"]
    # Our sources, and bytecode that is one and a half times as large as they are.
    own = sum(path.stat().st_size for name in ("toolkit", "entrypoints") for path in (ROOT / name).rglob("*.py"))
    assert layers[0] < 3 * own, "the last layer is trainshed and the ready programs, no package of others"
    assert max(layers[1:]) > 100_000_000, "torch lies below it"


@needs_docker
def test_packages_in_the_image_fit_together(container: Containers) -> None:
    done = container("pip", "check")
    assert done.status == 0, done.output


@needs_docker
def test_a_command_runs_exactly_as_it_is_given(container: Containers) -> None:
    arguments = ["two words", "semi;colon", "$HOME", "`id`", "'", '"', "", "-x", "--", "é\n2"]
    done = container("python", "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *arguments)
    assert json.loads(done.stdout) == arguments


@needs_docker
def test_the_exit_status_of_a_command_is_the_containers(container: Containers) -> None:
    assert container("bash", "-c", "exit 42").status == 42


@needs_docker
def test_train_without_a_job_says_what_it_would_need(container: Containers, user: str) -> None:
    job = container.job().open_to_all()
    done = container(job=job, user=user)
    assert done.status == 2, done.output
    assert "Traceback" not in done.output
    assert "/opt/ml" in done.output
    assert 1 <= len(done.output.strip().splitlines()) <= 20


@pytest.mark.spine
@needs_docker
def test_an_entrypoint_of_train_takes_the_argument_train(container: Containers) -> None:
    """`ENTRYPOINT ["train"]`: SageMaker and the SDKs run `IMAGE train`."""
    job = container.job().configure({"epochs": 3}).write({"code/train.py": "import sys; print(sys.argv[1:])"})
    done = container("train", job=job, options=("--entrypoint", "train"))
    assert (done.status, done.stdout.strip()) == (0, "['--epochs', '3']"), done.output
    assert (job.folder / "output/success").is_file()


@needs_docker
def test_doctor_is_a_command_of_the_image(container: Containers) -> None:
    done = container("doctor", "--json", mount=False)
    assert done.status == 0, done.output
    assert "torch" in [check["name"] for check in json.loads(done.stdout)["checks"]]


@needs_docker
@pytest.mark.parametrize("options", [("--tmpfs", "/tmp"), ()], ids=["noexec /tmp", "no /tmp"])
def test_a_read_only_container_installs_requirements_where_libraries_can_be_loaded(
    container: Containers, options: tuple[str, ...]
) -> None:
    script = (
        "import os, tiny_requirement\n"
        "noexec = os.statvfs(tiny_requirement.__file__).f_flag & os.ST_NOEXEC\n"
        "print(tiny_requirement.VERSION, bool(noexec), os.path.dirname(tiny_requirement.__file__))\n"
    )
    requirements = "--no-index\n--find-links .\ntiny_requirement\n"
    job = container.job().write({"code/train.py": script, "code/requirements.txt": requirements})
    make_wheel(job.folder / "code", "tiny_requirement", "1.0")
    done = container("train", job=job, options=("--read-only", *options))
    assert done.status == 0, done.output
    assert done.stdout.splitlines()[-1].startswith("1.0 False /opt/ml/trainshed-")
    assert not list(job.folder.glob("trainshed-*"))


@pytest.mark.spine
@needs_docker
def test_two_mpi_ranks_start_as_any_user(container: Containers, user: str) -> None:
    options = ["--oversubscribe", "-np", "2", *([] if user else ["--allow-run-as-root"])]
    program = ["bash", "-c", "echo rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"]
    done = container("mpirun", *options, *program, user=user)
    assert sorted(re.findall(r"rank \d of \d", done.stdout)) == ["rank 0 of 2", "rank 1 of 2"], done.output


@needs_docker
@pytest.mark.heavy
def test_two_torchrun_ranks_add_up_on_the_cpu(container: Containers) -> None:
    job = container.job().write({"ranks.py": SUM_OVER_RANKS})
    options = ["--standalone", "--nproc-per-node", "2"]
    done = container("torchrun", *options, "/opt/ml/ranks.py", job=job, env={"OMP_NUM_THREADS": "1"})
    # Two unbuffered ranks share one stream: their line ends may come after both texts.
    assert sorted(re.findall(r"rank \d total \d", done.stdout)) == ["rank 0 total 3", "rank 1 total 3"], done.output


@needs_docker
def test_hosts_on_a_network_reach_each_other_by_name(container: Containers, network: str) -> None:
    server = container.start("python", "-c", GREET_ONE_CLIENT, network=network, hostname="algo-1")
    server.wait_for("ready")
    ask = "import socket; print(socket.create_connection(('algo-1', 7777)).recv(99).decode())"
    assert container("python", "-c", ask, network=network, hostname="algo-2").stdout == "hello from algo-1\n"


@needs_docker
@pytest.mark.parametrize(
    ("program", "hyperparameters"),
    [
        pytest.param("image_classification.py", {"demo_data": "digits", "epochs": 1}, marks=pytest.mark.heavy),
        ("language_model.py", {"demo_data": "topics", "max_steps": 2, "n_layer": 1, "n_embd": 32, "block_size": 32}),
    ],
)
def test_a_ready_program_trains_without_code_data_network_or_root(
    container: Containers, program: str, hyperparameters: dict[str, Any]
) -> None:
    job = container.job().configure({"sagemaker_program": f"/opt/trainshed/entrypoints/{program}", **hyperparameters})
    done = container(job=job.open_to_all(), user="4242:4242", network="none", env={"OMP_NUM_THREADS": "1"})
    assert done.status == 0, done.output
    assert (job.folder / "output/success").is_file()
    assert any(path.is_file() for path in (job.folder / "model").rglob("*"))


@pytest.mark.exact
@needs_docker
def test_a_container_that_is_killed_goes_on_to_the_same_trees(container: Containers) -> None:
    """With LightGBM, which links what neither torch nor scikit-learn brings along."""
    rows = "".join(f"{(x * y) % 7},{x},{y}\n" for x in range(12) for y in range(12))

    def job(name: str) -> Job:
        made = container.job(name).configure(
            {"sagemaker_program": "tabular", "library": "lightgbm", "num_round": 2000, "eta": 0.02, "subsample": 0.7,
             "checkpoint_rounds": 20}
        )  # fmt: skip
        channels = json.dumps({"train": {"TrainingInputMode": "File"}})
        made.write({"input/data/train/rows.csv": rows, "input/config/inputdataconfig.json": channels})
        return made.write({"checkpoints/.keep": ""})

    straight, killed = job("straight"), job("killed")
    running = container.start(job=killed, env={"OMP_NUM_THREADS": "1"})
    running.wait_for("[60]\t")
    docker("kill", running.name, check=False)
    assert running.wait().status in (137, 0), "killed, or so quick that it was done"
    for one in (straight, killed):
        done = container(job=one, env={"OMP_NUM_THREADS": "1"})
        assert done.status == 0, done.output
        assert ("resuming from" in done.output) == (one is killed)
    trees = [one.read("model/model.txt").partition("\nparameters:")[0] for one in (straight, killed)]
    assert trees[0] == trees[1]


@pytest.mark.spine
@needs_docker
def test_docker_stop_ends_a_script_by_its_own_handler(container: Containers) -> None:
    job = container.job().configure({"sagemaker_program": "wait.py"})
    job.write({"code/wait.py": WAIT_FOR_SIGTERM, "model/.keep": ""})
    running = container.start(job=job)
    running.wait_for("waiting")
    running.stop()
    assert running.wait().status != 137, "killed: the signal did not arrive"
    assert job.read("model/saved") == "in time"


@needs_docker
def test_a_container_of_ones_own_trains_after_one_pip_install(
    container: Containers, base_image: str, tmp_path: Path
) -> None:
    context = tmp_path / "byoc"
    shutil.copytree(ROOT / "examples/byoc", context)
    wheel = own_wheel(context)
    name = f"trainshed-test-byoc-{container.session[:12]}"
    arguments = {"BASE_IMAGE": base_image, "TRAINSHED": f"./{wheel}"}
    if "PIP_INDEX_URL" in os.environ:
        arguments["PIP_INDEX_URL"] = os.environ["PIP_INDEX_URL"]
    image_build.build(context, name, arguments=arguments, labels={})
    try:
        job = container.job().configure({"epochs": 80})
        done = container(image=name, job=job)
        assert done.status == 0, done.output
        assert "epoch=80 loss=0.00" in done.output
        assert "tabular  " in container("trainshed", "algorithms", image=name).stdout
        line = json.loads(job.read("model/line.json"))
        assert abs(line["weight"] - 3) < 0.1
        assert (job.folder / "output/success").is_file()
    finally:
        container.remove()
        docker("image", "rm", "--force", name)


def test_dockerfiles_use_nothing_that_one_builder_alone_knows() -> None:
    for path in [*ROOT.glob("Dockerfile.*"), *ROOT.glob("images/*/Dockerfile")]:
        for form in BUILDKIT_ONLY:
            assert not re.search(form, path.read_text(), re.MULTILINE), f"{path.name} has {form}"


def test_what_the_dockerfiles_copy_reaches_the_builder() -> None:
    let_through = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in ROOT.glob("Dockerfile.*"):
        for sources in re.findall(r"^COPY (?!--)(.+) \S+$", path.read_text(), re.MULTILINE):
            for source in sources.split():
                assert (ROOT / source).exists(), f"{path.name}: {source}"
                assert any(source == name or source.startswith(f"{name}/") for name in let_through), f"{path.name}: {source}"


def test_every_requirement_of_the_images_is_pinned_alike_in_both_flavours() -> None:
    wanted = re.findall(r"^([a-z0-9-]+)$", (ROOT / "images/requirements.txt").read_text(), re.MULTILINE)
    cpu, gpu = (_pins(ROOT / f"images/{flavour}/constraints.txt") for flavour in ("cpu", "gpu"))
    assert "transformers" in wanted
    assert set(wanted) <= set(cpu)
    assert cpu == {name: version for name, version in gpu.items() if name in cpu}
    assert "torch" not in gpu, "torch is the build argument TORCH_VERSION's"
    assert not [name for name in cpu if name.startswith(("nvidia-", "cuda-", "triton"))]


@pytest.mark.safety
def test_every_pin_of_the_images_has_hashes_and_nothing_else_is_installed_there() -> None:
    for flavour in ("cpu", "gpu", "xla"):
        entries = re.split(r"^(?=[a-z])", (ROOT / f"images/{flavour}/constraints.txt").read_text(), flags=re.MULTILINE)[1:]
        assert len(entries) == len(_pins(ROOT / f"images/{flavour}/constraints.txt")) > 50
        assert [entry.split()[0] for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)] == []
    script = (ROOT / "images/install/packages.sh").read_text()
    installs = re.findall(r"^\$pip install (.*)", script, re.MULTILINE)
    assert len(installs) == 2 and "--no-deps" in installs[0] and "torch==" in installs[0]
    assert "--no-deps --require-hashes" in installs[1]


def test_what_an_installation_holds_is_told_as_cyclonedx_the_same_each_time() -> None:
    command = [sys.executable, str(ROOT / "images/install/sbom.py"), sys.executable, "trainshed"]
    texts = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2)]
    made = json.loads(texts[0])
    assert texts[0] == texts[1] and (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.5")
    by_name = {one["name"]: one for one in made["components"] if one["purl"].startswith("pkg:pypi/")}
    assert by_name["psutil"]["purl"] == f"pkg:pypi/psutil@{importlib.metadata.version('psutil')}"
    references = [one["bom-ref"] for one in made["components"]]
    assert references == sorted(set(references)) and {one["type"] for one in made["components"]} == {"library"}


def test_the_images_and_the_tests_have_the_same_torch() -> None:
    texts = [(ROOT / name).read_text() for name in ("Dockerfile.cpu", "Dockerfile.gpu", "Makefile")]
    versions = [re.findall(r"\b(?:ARG TORCH_VERSION=|torch==)([\d.]+)", text) for text in texts]
    assert versions[0] and versions[0] == versions[1] == versions[2]


def _pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", path.read_text(), re.MULTILINE))
