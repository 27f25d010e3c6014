"""`trainshed run --image` and `trainshed check-image` with real containers."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from support.docker_cli import docker as docker_cli
from support.projects import LIMIT, OWNER, left_behind, only_run, run, start

pytestmark = pytest.mark.docker


@pytest.mark.spine
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


@pytest.mark.spine
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


@pytest.mark.safety
@pytest.mark.spine
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
        assert "prints something else" in stdout
    finally:
        docker_cli("rm", container)
        docker_cli("image", "rm", "--force", name, check=False)


def test_an_image_that_is_not_here_is_one_line(project: Path) -> None:
    status, stdout, stderr = run(project, "check-image", "trainshed-test-nothing")
    assert (status, stdout) == (69, "")
    assert "image trainshed-test-nothing does not exist here" in stderr
