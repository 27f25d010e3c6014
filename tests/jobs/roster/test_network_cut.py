"""Hosts as network namespaces of one machine, and the cable between them pulled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.paths import TOOLKIT

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"
)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Pair:
    """Two hosts joined by one cable (a veth pair), each in a namespace of its own."""

    def __init__(self, folder: Path, name: str, script: str) -> None:
        self.spaces = [f"{name}-a", f"{name}-b"]
        self.hosts = ["10.77.0.1", "10.77.0.2"]
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        for space in self.spaces:
            ip("netns", "add", space)
        ip("link", "add", "cable", "netns", self.spaces[0], "type", "veth", "peer", "name", "cable", "netns", self.spaces[1])
        for number, space in enumerate(self.spaces):
            ip("-n", space, "addr", "add", f"{self.hosts[number]}/24", "dev", "cable")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", "cable", "up")
            base = folder / name / str(number)
            (base / "input/config").mkdir(parents=True)
            (base / "code").mkdir()
            (base / "code/train.py").write_text(script)
            (base / "input/config/hyperparameters.json").write_text("{}")
            resources = {"current_host": self.hosts[number], "hosts": self.hosts, "network_interface_name": "cable"}
            (base / "input/config/resourceconfig.json").write_text(json.dumps(resources))
        self.bases = [folder / name / "0", folder / name / "1"]

    def start(self) -> None:
        for space, base in zip(self.spaces, self.bases, strict=True):
            environment = {"PATH": os.environ["PATH"], "SAGEMAKER_BASE_DIR": str(base), "PYTHONPATH": str(TOOLKIT)}
            self.processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", space, sys.executable, "-m", "trainshed.container.main"],
                    env=environment,
                    stdout=open(base / "stdout", "wb"),  # noqa: SIM115 (closed with the process)
                    stderr=subprocess.STDOUT,
                )
            )
        deadline = time.monotonic() + 180
        while not all("started" in (base / "stdout").read_text() for base in self.bases):
            assert time.monotonic() < deadline, "the script did not start"
            time.sleep(0.05)

    def release(self) -> None:
        """Lets the script end, on both hosts."""
        for base in self.bases:
            (base / "code/go").touch()

    def cable(self, state: str) -> None:
        ip("-n", self.spaces[0], "link", "set", "cable", state)

    def exit_codes(self) -> list[int]:
        return [process.wait(timeout=240) for process in self.processes]

    def failure(self, number: int) -> str:
        path = self.bases[number] / "output/failure"
        return path.read_text() if path.exists() else ""

    def remove(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


@pytest.fixture
def pairs(tmp_path: Path):
    made: list[Pair] = []

    def make(name: str, script: str) -> Pair:
        made.append(Pair(tmp_path, f"ts{os.getpid()}{name}", script))
        return made[-1]

    yield make
    for pair in made:
        pair.remove()


def test_a_job_survives_a_network_that_is_away_for_a_while_and_ends_when_it_stays_away(pairs):
    # Side by side, since both are mostly waiting. tests/faults/nodes cuts for 20 s, which a busy machine makes longer.
    script = "import os, time\nprint('started', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    survivor, victim = pairs("s", script), pairs("v", script)
    for pair in (survivor, victim):
        pair.start()
    for pair in (survivor, victim):  # only now: what a slow machine takes to start the other one is no part of the cut
        pair.cable("down")
    time.sleep(12)
    survivor.cable("up")
    survivor.release()
    assert survivor.exit_codes() == [0, 0]
    assert all((base / "output/success").exists() for base in survivor.bases)
    assert victim.exit_codes() == [69, 69]
    assert victim.failure(0).startswith("ClusterError: 10.77.0.2 vanished: no sign of life")
    assert victim.failure(1).startswith("ClusterError: 10.77.0.1 (the first host) vanished: no sign of life")
