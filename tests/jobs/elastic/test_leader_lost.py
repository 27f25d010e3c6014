"""Jobs of three hosts that lose the first one, which leads them: killed, stopped for long, or cut off."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hosts import LIMIT, Hosts, ended

pytestmark = [pytest.mark.torch, pytest.mark.heavy, pytest.mark.safety]  # test_elastic_jobs has the short way
own_networks = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"
)

LEARNS = """\
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world, folder = dist.get_rank(), dist.get_world_size(), os.environ["SHARED"]
weights, start = torch.zeros(4), 0
for name in os.listdir(folder):
    if name.startswith("step-"):
        start = max(start, int(name[5:]))
if start:
    weights = torch.load(f"{folder}/step-{start}")
print("begin: world", world, "from step", start, flush=True)
rows = torch.arange(24.0).reshape(6, 4) / 24
for step in range(start + 1, STEPS + 1):
    mine = rows[rank * 6 // world : (rank + 1) * 6 // world]
    error = mine @ weights - mine.sum(1)
    both = torch.cat((mine.T @ error, (error @ error).reshape(1)))
    dist.all_reduce(both)
    weights = weights - 0.02 * both[:4]
    print("loss", step, f"{both[4].item():.5f}", flush=True)
    if rank == 0 and step % 5 == 0:
        torch.save(weights, f"{folder}/part")
        os.rename(f"{folder}/part", f"{folder}/step-{step}")
    while HOLD and step == HOLD and world == 3:
        time.sleep(0.1)
if rank == 0:
    with open(os.environ["SM_MODEL_DIR"] + "/model", "w") as file:
        file.write(f"{weights.tolist()}")
dist.destroy_process_group()
"""


class Switch:
    """Three network namespaces on one switch, which is a fourth."""

    def __init__(self, name: str) -> None:
        self.middle = f"{name}-s"
        self.spaces = [f"{name}-{number}" for number in range(3)]
        self.addresses = [f"10.78.0.{number + 1}" for number in range(3)]
        for space in (self.middle, *self.spaces):
            self._ip("netns", "add", space)
        self._ip("-n", self.middle, "link", "add", "switch", "type", "bridge")
        self._ip("-n", self.middle, "link", "set", "switch", "up")
        for number, space in enumerate(self.spaces):
            port = f"port{number}"
            self._ip("link", "add", "cable", "netns", space, "type", "veth", "peer", "name", port, "netns", self.middle)
            self._ip("-n", self.middle, "link", "set", port, "master", "switch", "up")
            self._ip("-n", space, "addr", "add", f"{self.addresses[number]}/24", "dev", "cable")
            self._ip("-n", space, "link", "set", "lo", "up")
            self._ip("-n", space, "link", "set", "cable", "up")

    def cut(self, number: int) -> None:
        """Nothing passes to or from this host, and its cable looks whole."""
        self._ip("-n", self.middle, "link", "set", f"port{number}", "nomaster")

    def remove(self) -> None:
        """Takes all of it away."""
        for space in (self.middle, *self.spaces):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def switch() -> Iterator[Switch]:
    made = Switch(f"el{os.getpid()}")
    yield made
    made.remove()


class LearningHosts(Hosts):
    """Three hosts that learn together, with checkpoints in one folder. hold: the step after which three hosts wait."""

    def __init__(
        self, folder: Path, *, hold: int = 7, steps: int = 20, min_nodes: int = 2, switch: Switch | None = None
    ) -> None:
        self.shared = folder / "shared"
        self.shared.mkdir(parents=True)
        settings = {"distribution": "torchrun", "engine": "torchrun", "processes_per_host": 1, "min_nodes": min_nodes}
        settings["grace_seconds"] = 5
        names = switch.addresses if switch is not None else ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        self.switch = switch
        script = LEARNS.replace("STEPS", str(steps)).replace("HOLD", str(hold))
        resources = {"network_interface_name": "cable"} if switch is not None else {}
        super().__init__(folder, names, script, {f"trainshed_{key}": value for key, value in settings.items()}, **resources)

    def prefix(self, number: int) -> list[str]:
        """The host's own network, where it has one."""
        if self.switch is None:
            return []
        named = [
            "unshare",
            "--uts",
            "sh",
            "-c",
            'hostname "$0" && exec "$@"',
            self.names[number],
        ]  # torch tells it the others
        return ["ip", "netns", "exec", self.switch.spaces[number], *named]

    def begin(self) -> None:
        """Starts all hosts; returns when they wait."""
        self.start(HOME=str(self.folder), SHARED=str(self.shared))
        self.wait_for("loss 7 ")

    def lines(self, number: int, mark: str) -> list[str]:
        """What a host has printed with this mark, without its name."""
        return [line[line.index(mark) :] for line in self.output(number).splitlines() if mark in line]


@pytest.mark.exact
def test_when_the_first_host_is_killed_the_others_go_on_as_a_restart_from_the_checkpoint_would(tmp_path: Path) -> None:
    with ended() as made:
        made.append(job := LearningHosts(tmp_path / "killed"))
        job.begin()
        job.processes[0].send_signal(signal.SIGKILL)
        assert [job.processes[number].wait(LIMIT) for number in (1, 2)] == [0, 0], job.all_output()
        job.wait_until_gone(0)

        made.append(again := LearningHosts(tmp_path / "again", hold=0))
        (again.shared / "step-5").write_bytes((job.shared / "step-5").read_bytes())
        again.start(HOME=str(again.folder), SHARED=str(again.shared))
        assert again.exit_codes() == [0, 0, 0], again.all_output()

    for number in (1, 2):
        assert job.lines(number, "begin:") == ["begin: world 3 from step 0", "begin: world 2 from step 5"]
        assert "trainshed: 127.0.0.2 leads the job now: starting the ranks again" in job.output(number)
        assert job.lines(number, "loss")[7:] == again.lines(number, "loss")
        (record,) = (job.base(number) / "output/data/run").glob("*.json")
        (restart,) = json.loads(record.read_text())["restarts"]
        assert restart["reason"].startswith("127.0.0.1 (the first host) vanished")
        assert job.succeeded(number) and not job.failure(number)
    assert sum((job.base(number) / "model/model").exists() for number in (1, 2)) == 1


def test_host_after_host_is_killed_and_the_last_one_finishes(tmp_path: Path) -> None:
    with ended() as made:
        made.append(job := LearningHosts(tmp_path, min_nodes=1, steps=400))
        job.begin()
        job.processes[0].send_signal(signal.SIGKILL)
        job.wait_for_host(2, "begin: world 2 from step 5")
        job.processes[1].send_signal(signal.SIGKILL)
        assert job.processes[2].wait(LIMIT) == 0, job.all_output()
        job.wait_until_gone(0)
        job.wait_until_gone(1)
    assert "127.0.0.3 leads the job now" in job.output(2) and "begin: world 1" in job.output(2)
    assert (job.base(2) / "model/model").exists()


def test_when_too_few_are_left_they_end_with_words(tmp_path: Path) -> None:
    with ended() as made:
        made.append(job := LearningHosts(tmp_path))
        job.begin()
        job.processes[0].send_signal(signal.SIGKILL)
        job.processes[1].send_signal(signal.SIGKILL)
        assert job.processes[2].wait(LIMIT) == 69, job.all_output()
    assert "trainshed_min_nodes = 2" in job.failure(2)


@own_networks
def test_a_first_host_that_is_cut_off_ends_and_the_larger_part_goes_on(tmp_path: Path, switch: Switch) -> None:
    with ended() as made:
        made.append(job := LearningHosts(tmp_path, min_nodes=1, switch=switch))
        job.begin()
        switch.cut(0)
        assert job.exit_codes() == [69, 0, 0], job.all_output()
    assert "cannot reach the other hosts" in job.failure(0)
    assert job.lines(2, "begin:") == ["begin: world 3 from step 0", "begin: world 2 from step 5"]


@own_networks
def test_a_first_host_that_is_stopped_for_long_is_out_when_it_wakes(tmp_path: Path, switch: Switch) -> None:
    with ended() as made:
        # Alone it would be enough by number: only what the others have decided keeps it from going on.
        made.append(job := LearningHosts(tmp_path, min_nodes=1, switch=switch))
        job.begin()
        job.processes[0].send_signal(signal.SIGSTOP)
        try:
            assert [job.processes[number].wait(LIMIT) for number in (1, 2)] == [0, 0], job.all_output()
        finally:
            job.processes[0].send_signal(signal.SIGCONT)
        assert job.processes[0].wait(LIMIT) == 69, job.all_output()
    assert "was suspended for" in job.failure(0)
    assert job.lines(0, "begin:") == ["begin: world 3 from step 0"]
