"""A cluster of our own for the tests of this folder, and jobs that are run on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.venvs import make
from support.own_cluster import OwnCluster
from support.paths import TOOLKIT

LIMIT = 120.0  # seconds; a hang must not hang the tests
JOB = """
name: digits
image: registry.example/train:1
program: train.py
source_dir: src
instances: {instances}
environment: {{HF_TOKEN: hf_of_mine_1234567890}}
kubernetes: {kubernetes}
"""


class Followed:
    """`trainshed run --on kubernetes` as a process."""

    def __init__(self, python: Path, cluster: OwnCluster, folder: Path, *options: str, **places: Any) -> None:
        self.python, self.cluster, self.folder = python, cluster, folder
        (folder / "src").mkdir()
        (folder / "src/train.py").write_text("print('never run here')\n")
        instances = places.pop("instances", 1)
        wanted = {"output": "results", **places}
        (folder / "job.yaml").write_text(JOB.format(instances=instances, kubernetes=json.dumps(wanted)))
        self.config = cluster.kubeconfig(folder)
        self.out = folder / "out"
        self.process = self.start("run", "job.yaml", "--on", "kubernetes", "--output", "run", *options)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A command; what it says is added to `output`."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(TOOLKIT),
            "KUBECONFIG": str(self.config),
            "XDG_STATE_HOME": str(self.folder / "state"),
        }
        command = [str(self.python), "-m", "trainshed.cli", *words]
        with open(self.out, "ab") as out:
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=out, stderr=subprocess.STDOUT)

    @property
    def output(self) -> str:
        return self.out.read_text(errors="replace")

    @property
    def status(self) -> dict[str, Any]:
        return json.loads((self.folder / "run/status.json").read_text())

    def until(self, *texts: str) -> None:
        """Until each of the texts has been printed, while the job is followed."""
        self.wait_for(lambda: all(text in self.output for text in texts), f"was not printed: {texts}")

    def wait_for(self, what: Callable[[], bool], problem: str) -> None:
        end = time.monotonic() + LIMIT
        while not what():
            assert self.process.poll() is None or what(), f"{problem}\n{self.output}"
            assert time.monotonic() < end, f"{problem}\n{self.output}"
            time.sleep(0.05)

    def end(self) -> int:
        """Its exit status."""
        try:
            return self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end\n{self.output}") from None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def take_up(self) -> None:
        """Another follower."""
        self.process = self.start("attach", "./run")


@pytest.fixture(scope="session")
def python() -> Path:
    """A Python that has the Kubernetes client."""
    return make("kubernetes")


@pytest.fixture
def cluster() -> Iterator[OwnCluster]:
    """Nobody else's."""
    made = OwnCluster()
    yield made
    made.close()


@pytest.fixture
def submit(python: Path, cluster: OwnCluster, tmp_path: Path) -> Iterator[Callable[..., Followed]]:
    """Runs a job there: options of `trainshed run`, and what the job file says of `kubernetes`."""
    made: list[Followed] = []

    def submit(*options: str, **places: Any) -> Followed:
        made.append(Followed(python, cluster, tmp_path, *options, **places))
        return made[-1]

    yield submit
    for one in made:
        one.process.kill()
        one.process.wait()
