"""Ray as a distribution: each job has a cluster of its own, with the script on the first host."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.free_ports import free_ports
from support.hosts import Hosts, ended
from support.paths import TOOLKIT

JOB = {"sagemaker_program": "train.py", "trainshed_distribution": "ray", "trainshed_grace_seconds": "30"}
# One task on each host; `everywhere(work)` has their answers.
SCRIPT = """\
import os, signal, sys, time
import ray
ray.init()
def everywhere(work):
    task = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(work)
    return ray.get([task.remote() for _ in ray.nodes()])
"""
Start = Callable[..., Hosts]


@pytest.fixture
def start(python: Path) -> Iterator[Start]:
    """Starts a job: its script, its number of hosts, more variables."""
    (packages,) = (python.parent.parent / "lib").glob("python*/site-packages")
    folder = Path(tempfile.mkdtemp(prefix="r"))  # a short path: sockets live in it
    with ended() as made:

        def begin(script: str, count: int, **variables: str) -> Hosts:
            names = [f"127.0.0.{number + 1}" for number in range(count)]
            made.append(Hosts(folder, names, script, JOB))
            made[-1].start(**{"PYTHONPATH": f"{TOOLKIT}:{packages}", **variables})
            return made[-1]

        yield begin
    shutil.rmtree(folder, ignore_errors=True)


def nobody_left(job: Hosts) -> None:
    """Waits until nothing of the job is left."""
    for number in range(len(job.names)):
        job.wait_until_gone(number)


@pytest.mark.spine
def test_the_script_finds_the_nodes_of_all_hosts_and_they_end_with_it(start: Start) -> None:
    """It waits until both hosts have done some of its work: where a task runs is Ray's choice."""
    works = """
def work():
    time.sleep(0.2)
    return os.environ["SM_CURRENT_HOST"]
found = set()
while len(found) < 2:
    found.update(everywhere(work))
print("WORKED", sorted(found), os.environ["RAY_AUTH_MODE"], flush=True)
"""
    job = start(SCRIPT + works, 2)

    assert job.exit_codes() == [0, 0], job.all_output()
    assert "[127.0.0.1:0] WORKED ['127.0.0.1', '127.0.0.2'] token" in job.output(0)


@pytest.mark.matrix
def test_the_cluster_of_all_hosts_comes_back_with_the_script_after_a_failure(start: Start) -> None:
    works = """
def work():
    time.sleep(0.2)
    return os.environ["SM_CURRENT_HOST"]
found = set()
while len(found) < 2:
    found.update(everywhere(work))
print("WORKED", sorted(found), flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("once")
"""
    job = start(SCRIPT + works, 2, TRAINSHED_MAX_RESTARTS="1")

    assert job.exit_codes() == [0, 0], job.all_output()
    assert job.output(0).count("WORKED ['127.0.0.1', '127.0.0.2']") == 2
    assert all("restart 1 of 1, from the beginning: rank 0 on 127.0.0.1 exited" in job.output(n) for n in range(2))
    nobody_left(job)
    assert "[127.0.0.2:ray] Ray has started on this host" in job.output(1)
    assert all(job.succeeded(number) for number in (0, 1))
    assert "Next steps" not in job.all_output()
    nobody_left(job)
    assert not list(job.folder.glob("ray-*")), "links are left"


@pytest.mark.matrix
def test_a_port_that_is_taken_is_the_cause_on_all_hosts(start: Start) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        job = start(SCRIPT, 2, MASTER_PORT=str(port), TRAINSHED_ROSTER_PORT=str(free_ports(1)))
        codes = job.exit_codes()

    assert codes == [1, 1], job.all_output()
    for number in (0, 1):
        first = job.failure(number).splitlines()[0]
        assert f"Ray's head on 127.0.0.1 exited with 1: port {port} is taken on this host" in first
        assert "trainshed_master_port" in first
    nobody_left(job)


@pytest.mark.matrix
def test_a_python_without_ray_is_told_what_to_install(start: Start) -> None:
    job = start("print('never')", 1, PYTHONPATH=str(TOOLKIT))

    assert job.exit_codes() == [1], job.all_output()
    assert "has no Ray: add ray[train] to requirements.txt" in job.failure()
    assert "never" not in job.output()


@pytest.mark.matrix
@pytest.mark.heavy
def test_a_worker_that_raises_on_another_host_is_named_with_its_exception(start: Start) -> None:
    raises = """
def work():
    time.sleep(0.2)
    if os.environ["SM_CURRENT_HOST"] == "127.0.0.2":
        raise ValueError("no data here")
while True:
    everywhere(work)
"""
    job = start(SCRIPT + raises, 2)

    assert job.exit_codes() == [1, 1], job.all_output()
    for number in (0, 1):
        assert "ValueError" in job.failure(number) and "no data here" in job.failure(number)
    nobody_left(job)


@pytest.mark.matrix
@pytest.mark.safety
@pytest.mark.heavy
def test_a_host_that_is_killed_ends_the_job_with_its_name(start: Start) -> None:
    job = start(f"{SCRIPT}print('READY', flush=True)\ntime.sleep(600)", 2)
    job.wait_for_host(0, "READY")
    job.processes[1].kill()

    assert job.exit_codes()[0] not in (0, -signal.SIGKILL), job.all_output()
    assert "127.0.0.2" in job.failure(0).splitlines()[0]
    nobody_left(job)


@pytest.mark.matrix
@pytest.mark.safety
@pytest.mark.heavy
def test_a_node_that_dies_ends_the_job_with_its_name(start: Start) -> None:
    kills = """
def work():
    os.kill(os.getppid(), signal.SIGKILL)  # Ray's raylet is above its workers
    time.sleep(60)
while True:
    for node in ray.nodes():
        if "HEAD" not in str(node["Resources"]).upper():
            place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ray.remote(num_cpus=1, scheduling_strategy=place, max_retries=0)(work).remote()
    time.sleep(600)
"""
    job = start(SCRIPT + "import ray.util.scheduling_strategies\n" + kills, 2)

    assert 0 not in job.exit_codes(), job.all_output()
    for number in (0, 1):
        assert "Ray's node on 127.0.0.2 exited with 1" in job.failure(number).splitlines()[0]
    nobody_left(job)


@pytest.mark.matrix
@pytest.mark.heavy
def test_nodes_serve_while_the_script_answers_a_stop_signal_to_another_host(start: Start) -> None:
    saves = """
@ray.remote(num_cpus=1)
class Holder:
    def held(self):
        return os.environ["SM_CURRENT_HOST"]
holders = [Holder.remote() for _ in ray.nodes()]
def stopped(*_):
    time.sleep(1)
    print("SAVED", sorted(ray.get([one.held.remote() for one in holders])), flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, stopped)
ray.get([one.held.remote() for one in holders])
print("READY", flush=True)
time.sleep(600)
"""
    job = start(SCRIPT + saves, 2)
    job.wait_for_host(0, "READY")
    job.processes[1].terminate()

    assert job.exit_codes() == [0, 0], job.all_output()
    assert not any(job.succeeded(number) for number in (0, 1))
    assert "SAVED ['127.0.0.1', '127.0.0.2']" in job.output(0), job.all_output()
    nobody_left(job)


@pytest.mark.matrix
@pytest.mark.heavy
def test_a_stop_before_all_nodes_have_joined_ends_the_job_before_the_script(start: Start) -> None:
    job = start("print('never')", 2)
    job.wait_for_host(0, "Ray has started on this host")
    job.processes[0].terminate()

    assert 0 not in job.exit_codes(), job.all_output()
    assert "before Ray was there for the script" in job.failure(0) and "never" not in job.output(0)
    nobody_left(job)


@pytest.mark.matrix
@pytest.mark.heavy
def test_ray_train_trains_by_ddp_on_three_hosts(start: Start) -> None:
    job = start((Path(__file__).parent / "digits_train.py").read_text(), 3)

    assert job.exit_codes() == [0, 0, 0], job.all_output()
    said = job.output(0)
    assert all(f"RANK {rank} of 3" in said for rank in range(3)), said
    assert float(said.split("metric loss=")[1].split()[0]) < 0.5
    assert (job.base(0) / "model/net.pt").exists()
    nobody_left(job)


@pytest.mark.matrix
def test_a_dry_run_shows_the_node_and_the_script(start: Start, tmp_path: Path) -> None:
    job = Hosts(tmp_path, ["127.0.0.1", "127.0.0.2"], "", JOB)
    shown = [
        subprocess.run(
            [sys.executable, "-m", "trainshed.container.main", "--dry-run"],
            env={"PYTHONPATH": str(TOOLKIT), "SAGEMAKER_BASE_DIR": str(job.base(number)), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in (0, 1)
    ]

    assert "the script and Ray's head, which has 2 host(s)" in shown[0]
    assert "--head" in shown[0] and "rank 0 " in shown[0] and "RAY_ADDRESS=" in shown[0]
    assert "a node of Ray for the script on 127.0.0.1" in shown[1]
    assert "--address" in shown[1] and "rank 0 " not in shown[1] and "RAY_ADDRESS=" not in shown[1]
