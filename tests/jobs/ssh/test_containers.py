"""Jobs with an image on machines that one can ssh to: a real engine there, and an image of a shell and nothing else."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import tarfile
import time
import uuid
from collections.abc import Iterator

import pytest

from jobs.ssh.machines import Lab, needs_sshd


def _answers() -> bool:
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


pytestmark = [needs_sshd, pytest.mark.skipif(not _answers(), reason="needs a Docker daemon")]

TRAIN = """#!/bin/sh
echo "train on $SM_EXTRA with"
while read -r line; do echo "$line"; done < /opt/ml/input/config/hyperparameters.json
while read -r line; do echo "data: $line"; done < /opt/ml/input/data/train/x.csv
echo weights > /opt/ml/model/weights
trap 'echo stopped in time; exit 0' TERM
[ -z "$WAITS" ] || while :; do read -t 1 line < /dev/zero 2>/dev/null || :; done
exit "${CODE:-0}"
"""


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image with dash as its shell, and `train`."""
    name = f"trainshed-test-shell:{uuid.uuid4().hex[:8]}"
    found = subprocess.run(["ldd", "/bin/dash"], capture_output=True, text=True, check=True).stdout
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path in re.findall(r"(/\S+) \(", found):
            tar.add(os.path.realpath(path), path)
        tar.add(os.path.realpath("/bin/dash"), "/bin/sh")
        info = tarfile.TarInfo("/bin/train")
        info.size, info.mode = len(TRAIN.encode()), 0o755
        tar.addfile(info, io.BytesIO(TRAIN.encode()))
    subprocess.run(["docker", "import", "-", name], input=data.getvalue(), check=True, capture_output=True)
    yield name
    subprocess.run(["docker", "image", "rm", "--force", name], check=False, capture_output=True)


def job(lab: Lab, image: str, **fields: object) -> str:
    lab.add("a")
    (lab.folder / "data").mkdir()
    (lab.folder / "data/x.csv").write_text("1,2\n")
    ssh = {"engine": "docker"}
    return str(lab.job("", image=image, program="train.py", source_dir="code", ssh=ssh, hyperparameters={"lr": 0.1},
                       channels={"train": str(lab.folder / "data")}, **fields))  # fmt: skip


def containers(image: str) -> str:
    command = ["docker", "ps", "--all", "--quiet", "--filter", f"ancestor={image}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.spine
def test_a_container_there(lab: Lab, image: str) -> None:
    done = lab.trainshed("run", job(lab, image, environment={"SM_EXTRA": "a machine"}), "--on", "ssh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train on a machine" in done.stdout and "data: 1,2" in done.stdout
    assert '"sagemaker_submit_directory": "\\"/opt/ml/code\\""' in done.stdout
    assert (lab.run / "model/weights").read_text() == "weights\n"
    assert lab.left == [] and containers(image) == ""


def waiting(lab: Lab, file: str, name: str) -> subprocess.Popen[str]:
    """A run that has begun to wait for its stop."""
    process = lab.start("run", file, "--on", "ssh", "--env", "WAITS=1", "--name", name)
    deadline = time.monotonic() + 240
    while not any("data:" in log.read_text() for log in lab.folder.glob(f"runs/{name}-*/logs/algo-1.log")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=240)[0]
    assert process.returncode == 130 and "stopped in time" in text, text


@pytest.mark.safety
def test_its_exit_status_and_a_stop(lab: Lab, image: str) -> None:
    file = job(lab, image, environment={"CODE": "7"})
    done = lab.trainshed("run", file, "--on", "ssh")
    assert done.returncode == 7, done.stdout + done.stderr
    stop(waiting(lab, file, "waits"))
    assert lab.left == [] and containers(image) == ""


@pytest.mark.safety
def test_a_run_that_ends_leaves_the_others_of_its_machine_alone(lab: Lab, image: str) -> None:
    """Every container has the folder /opt/ml: what is left of a run is not known by that."""
    file = job(lab, image)
    process = waiting(lab, file, "waits")
    done = lab.trainshed("run", file, "--on", "ssh", "--name", "short")
    assert done.returncode == 0, done.stdout + done.stderr
    stop(process)
    assert lab.left == [] and containers(image) == ""


def test_an_image_that_nobody_has(lab: Lab) -> None:
    done = lab.trainshed("run", job(lab, "localhost:1/no/such:image"), "--on", "ssh")
    assert done.returncode == 69
    assert "a: docker cannot use localhost:1/no/such:image" in done.stderr and "docker save" in done.stderr
