"""`trainshed run --image` and `trainshed check-image` with real containers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainshed
from container.docker_cli import docker as docker_cli

pytestmark = pytest.mark.docker

TOOLKIT = str(Path(trainshed.__file__).parents[1])
LIMIT = 600.0  # seconds; a hang must not hang the tests
OWNER = 12345  # stands for a person who is not root where the tests themselves run as root
TRAIN = """\
import os
print("metric loss=0.5 step=1")
print(os.getuid(), sorted(os.listdir(os.environ["SM_CHANNEL_TRAIN"])), os.environ["SM_CURRENT_HOST"])
for name in ("SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR", "SM_CHECKPOINT_DIR"):
    open(os.environ[name] + "/" + os.environ["SM_CURRENT_HOST"], "w").close()
try:
    open(os.environ["SM_CHANNEL_TRAIN"] + "/new", "w")
except OSError as error:
    print("data:", error.strerror)
print("shm", os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize)
"""
TALK = """\
import os, socket
if os.environ["SM_CURRENT_HOST"] == "algo-1":
    server = socket.create_server(("", 7000))
    peer, _ = server.accept()
    print("heard", peer.recv(99).decode())
else:
    while True:  # until the other one listens
        try:
            peer = socket.create_connection(("algo-1", 7000))
            break
        except OSError:
            import time; time.sleep(0.1)
    peer.sendall(socket.gethostname().encode())
"""
NAP = """\
import os, signal, sys, time
def stop(*_):
    open(os.environ["SM_MODEL_DIR"] + "/saved-" + os.environ["SM_CURRENT_HOST"], "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("napping", flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def project(docker: str, cpu_image: str) -> Iterator[Path]:
    """A folder of a person who is not root, with code and data; containers that a failed test leaves are removed."""
    folder = Path(tempfile.mkdtemp(prefix="trainshed-test-"))
    for name, text in {"src/train.py": TRAIN, "src/talk.py": TALK, "src/nap.py": NAP, "data/a.csv": "1\n"}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    yield folder
    for listing, remove in ((["ps", "--all"], ["rm", "--force", "--volumes"]), (["network", "ls"], ["network", "rm"])):
        if left := _labelled(folder, listing, "{{.ID}}"):
            docker_cli(*remove, *left, check=False)
    shutil.rmtree(folder)


def start(project: Path, *arguments: str) -> subprocess.Popen[str]:
    sudo = {"SUDO_UID": str(OWNER), "SUDO_GID": str(OWNER)} if os.getuid() == 0 else {}
    return subprocess.Popen(
        [sys.executable, "-m", "trainshed.cli", *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": TOOLKIT, **sudo},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(project: Path, *arguments: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr)."""
    process = start(project, *arguments)
    stdout, stderr = process.communicate(timeout=LIMIT)
    return process.returncode, stdout, stderr


def only_run(project: Path) -> Path:
    (found,) = (project / "runs").iterdir()
    return found


def left_behind(project: Path) -> list[str]:
    """Containers and networks of this project's runs."""
    return _labelled(project, ["ps", "--all"], "{{.ID}}") + _labelled(project, ["network", "ls"], "{{.ID}}")


def _labelled(project: Path, listing: list[str], form: str) -> list[str]:
    columns = f'{{{{.Label "org.trainshed.folder"}}}} {form}'
    lines = docker_cli(*listing, "--filter", "label=org.trainshed.run", "--format", columns).stdout.splitlines()
    return [line.split()[1] for line in lines if line.startswith(f"{project}/")]


def test_one_container_trains_as_its_caller_and_leaves_nothing_of_roots(project: Path, cpu_image: str) -> None:
    status, stdout, stderr = run(
        project, "run", "src/train.py", "--image", cpu_image, "--channel", "train=data", "--shm-size", "80m"
    )
    owner = OWNER if os.getuid() == 0 else os.getuid()
    assert status == 0, stdout + stderr
    assert f"{owner} ['a.csv'] algo-1" in stdout
    assert "data: Read-only file system" in stdout
    assert f"shm {80 << 20}" in stdout
    owners = {path.lstat().st_uid for path in [only_run(project), *only_run(project).rglob("*")]}
    assert owners == {owner}
    assert (only_run(project) / "checkpoints/algo-1").exists()
    assert "loss 0.5" in stderr
    assert "model.tar.gz  (1 file" in stderr
    assert left_behind(project) == []


def test_two_containers_reach_each_other_by_name(project: Path, cpu_image: str) -> None:
    status, stdout, stderr = run(project, "run", "src/talk.py", "--image", cpu_image, "--instances", "2")
    assert status == 0, stdout + stderr
    assert "[algo-1] heard algo-2" in stdout
    assert left_behind(project) == []


@pytest.mark.torch
def test_ranks_in_two_containers_add_up(project: Path, cpu_image: str) -> None:
    script = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print("rank", dist.get_rank(), "total", total.item())
dist.destroy_process_group()
"""
    (project / "src/ddp.py").write_text(script)
    flags = ["--instances", "2", "--distribution", "torchrun", "--processes-per-host", "1", "--env", "OMP_NUM_THREADS=1"]
    status, stdout, stderr = run(project, "run", "src/ddp.py", "--image", cpu_image, *flags)
    assert status == 0, stdout + stderr
    assert sorted(stdout.splitlines()) == ["[algo-1:0] rank 0 total 3.0", "[algo-2:1] rank 1 total 3.0"]


def test_ctrl_c_lets_containers_save_and_removes_them(project: Path, cpu_image: str) -> None:
    process = start(project, "run", "src/nap.py", "--image", cpu_image, "--instances", "2")
    end = time.monotonic() + LIMIT
    logs: list[Path] = []
    while len([log for log in logs if "napping" in log.read_text()]) < 2:
        assert time.monotonic() < end and process.poll() is None, [log.read_text() for log in logs]
        time.sleep(0.1)
        logs = list(project.glob("runs/*/logs/*.log"))
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=LIMIT)
    state = json.loads((only_run(project) / "status.json").read_text())
    assert process.returncode == 130, stderr
    assert sorted(path.name for path in (only_run(project) / "model").iterdir()) == ["saved-algo-1", "saved-algo-2"]
    assert state["TrainingJobStatus"] == "Stopped"
    assert left_behind(project) == []


def test_a_container_that_fails_ends_the_others_with_its_reason(project: Path, cpu_image: str) -> None:
    script = "import os, time\nif os.environ['SM_CURRENT_HOST'] == 'algo-1':\n    raise KeyError('one')\ntime.sleep(600)\n"
    (project / "src/fail.py").write_text(script)
    status, _, stderr = run(project, "run", "src/fail.py", "--image", cpu_image, "--instances", "2")
    assert status == 1
    assert "exit       1 on algo-1" in stderr
    assert "KeyError: 'one'" in stderr[stderr.index("failed   ") :]
    assert left_behind(project) == []


def test_a_container_out_of_memory_is_said_to_be(project: Path, cpu_image: str) -> None:
    (project / "src/eat.py").write_text("held = []\nwhile True:\n    held.append(bytes(10_000_000))\n")
    status, _, stderr = run(
        project, "run", "src/eat.py", "--image", cpu_image, "--memory", "64m", "--env", "PYTHONMALLOC=malloc"
    )
    assert status == 137, stderr
    assert "memory" in stderr[stderr.index("failed   ") :]


def test_an_image_without_train_fails_with_what_to_do(project: Path, base_image: str) -> None:
    status, _, stderr = run(project, "run", "src/train.py", "--image", base_image, "--channel", "train=data")
    assert status == 127, stderr
    assert "pip install trainshed" in stderr
    assert left_behind(project) == []


def test_the_code_of_an_image_is_used_where_the_job_brings_none(project: Path, cpu_image: str) -> None:
    name = f"trainshed-test-baked-{os.getpid()}"
    (project / "ml/code").mkdir(parents=True)
    (project / "ml/code/train.py").write_text("print('from the image')\n")
    container = docker_cli("create", cpu_image).stdout.strip()
    try:
        docker_cli("cp", f"{project}/ml", f"{container}:/opt/")
        docker_cli("commit", container, name)
        status, stdout, stderr = run(project, "run", "--image", name, "--name", "baked")
        assert (status, stdout) == (0, "from the image\n"), stderr
    finally:
        docker_cli("rm", container)
        docker_cli("image", "rm", "--force", name, check=False)


def test_the_cpu_image_passes_its_check(project: Path, cpu_image: str) -> None:
    status, stdout, stderr = run(project, "check-image", cpu_image, "--json")
    found = json.loads(stdout)
    assert status == 0, stdout + stderr
    assert found["ok"] is True
    levels = {check["name"]: check["level"] for check in found["checks"]}
    assert {name for name, level in levels.items() if level != "ok"} == {"shm"}
    assert {"train", "commands", "any user", "inside: torch", "inside: job"} <= levels.keys()


def test_an_image_that_cannot_train_is_told_why(project: Path, base_image: str) -> None:
    status, stdout, _ = run(project, "check-image", base_image)
    assert status == 1
    assert "fail  train" in stdout
    assert "fix: RUN pip install trainshed" in stdout


def test_an_entrypoint_that_swallows_its_arguments_is_found(project: Path, base_image: str) -> None:
    name = f"trainshed-test-swallow-{os.getpid()}"
    container = docker_cli("create", base_image).stdout.strip()
    try:
        docker_cli("commit", "--change", 'ENTRYPOINT ["/bin/sh", "-c", "exit 3"]', container, name)
        status, stdout, _ = run(project, "check-image", name)
        assert status == 1
        assert "fail  commands" in stdout
        assert "does not echo" in stdout
    finally:
        docker_cli("rm", container)
        docker_cli("image", "rm", "--force", name, check=False)


def test_an_image_that_is_not_here_is_one_line(project: Path) -> None:
    status, stdout, stderr = run(project, "check-image", "trainshed-test-nothing")
    assert (status, stdout) == (69, "")
    assert "there is no image trainshed-test-nothing here" in stderr
