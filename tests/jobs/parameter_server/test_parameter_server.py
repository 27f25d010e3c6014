"""Jobs of a chief, workers and parameter servers: who ends whom, and whose failure it is. Without TensorFlow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.hosts import SOON_GONE, Hosts, ended

JOB = {"sagemaker_program": "train.py", "trainshed_distribution": "parameter_server", "trainshed_grace_seconds": "20"}
# Plays every role: all but the chief say that they serve, and wait for ever. The chief starts when all of them serve.
ROLES = """\
import json, os, pathlib, signal, sys, time
told = json.loads(os.environ["TF_CONFIG"])
role, index = told["task"]["type"], told["task"]["index"]
here = pathlib.Path(os.environ["TMPDIR"], "serving")
here.mkdir(exist_ok=True)
os.write(1, ("TOLD" + json.dumps(told) + "\\n").encode())
def serve():
    (here / f"{role}{index}").write_text(str(os.getpid()))
    while True:
        time.sleep(60)
def all_serve():
    while len(list(here.iterdir())) < int(os.environ["WORLD_SIZE"]) - 1:
        time.sleep(0.02)
"""
# For `start`: what is asked to end has little time.
KILLS_SOON = """
from trainshed.container.launchers.parameter_server import servers_watcher
servers_watcher.KILL_AFTER = 0.5
"""
CHIEF_ENDS = ROLES + "serve() if role != 'chief' else all_serve()\nprint('CHIEF DONE', flush=True)\n"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Hosts]]:
    """Starts a job: its script, its number of hosts, its folder below the test's, code for `train`, hyperparameters."""
    with ended() as made:

        def begin(script: str, count: int, folder: str = "job", code: str = "", **more: object) -> Hosts:
            names = [f"127.0.0.{number + 1}" for number in range(count)]
            (tmp_path / folder).mkdir()
            made.append(Hosts(tmp_path / folder, names, script, {**JOB, **more}))
            made[-1].start(code=code)
            return made[-1]

        yield begin


def told(job: Hosts) -> list[dict[str, Any]]:
    """What the processes were told, by role and index."""
    found = [json.loads(line) for line in re.findall(r"TOLD(\{.*\})", job.all_output())]
    return sorted(found, key=lambda one: (one["task"]["type"], one["task"]["index"]))


def nobody_left(job: Hosts) -> None:
    """Waits until nothing of the job is left."""
    for number in range(len(job.names)):
        job.wait_until_gone(number)


@pytest.mark.spine
def test_the_servers_of_all_hosts_end_well_when_the_chief_is_done(start: Callable[..., Hosts]) -> None:
    job = start(CHIEF_ENDS, 2)

    assert job.exit_codes() == [0, 0], job.all_output()
    assert all(job.succeeded(number) for number in (0, 1))
    assert [(one["task"]["type"], one["task"]["index"]) for one in told(job)] == [
        ("chief", 0), ("ps", 0), ("ps", 1), ("worker", 0),
    ]  # fmt: skip
    assert "127.0.0.1:chief" in job.output(0) and "127.0.0.2:ps1" in job.output(1) and "127.0.0.2:worker0" in job.output(1)
    nobody_left(job)


def test_every_process_has_an_address_of_its_own_and_all_know_the_same(start: Callable[..., Hosts]) -> None:
    job = start(CHIEF_ENDS, 1, trainshed_roles='{"worker": 2, "ps": 2, "evaluator": 1}', trainshed_grace_seconds=0)

    assert job.exit_codes() == [0], job.all_output()
    clusters = [one["cluster"] for one in told(job)]
    addresses = [address for ones in clusters[0].values() for address in ones]
    assert all(cluster == clusters[0] for cluster in clusters) and len(clusters) == 6
    assert {role: len(ones) for role, ones in clusters[0].items()} == {"chief": 1, "worker": 2, "ps": 2}
    assert len(set(addresses)) == 5


@pytest.mark.spine
def test_a_server_that_is_killed_is_the_cause_by_its_name(start: Callable[..., Hosts], tmp_path: Path) -> None:
    kill = "all_serve()\nos.kill(int((here / 'ps1').read_text()), signal.SIGKILL)\ntime.sleep(600)\n"
    job = start(f"{ROLES}if role != 'chief': serve()\n{kill}", 2)

    assert 0 not in job.exit_codes(), job.all_output()
    for number in (0, 1):
        assert "parameter server 1 on 127.0.0.2 was killed by SIGKILL" in job.failure(number).splitlines()[0]
    nobody_left(job)


def test_a_worker_that_raises_is_the_cause_with_its_exception(start: Callable[..., Hosts]) -> None:
    job = start(
        f"{ROLES}all_serve() if role == 'chief' else 1\nif role == 'worker': raise ValueError('no data here')\nserve()", 2
    )

    assert job.exit_codes() == [1, 1], job.all_output()
    for number in (0, 1):
        assert "worker 0 on 127.0.0.2" in job.failure(number) and "ValueError: no data here" in job.failure(number)


def test_a_chief_that_fails_ends_all_with_its_exception(start: Callable[..., Hosts]) -> None:
    job = start(f"{ROLES}if role != 'chief': serve()\nall_serve()\nraise KeyError('accuracy')\n", 2)

    assert job.exit_codes() == [1, 1], job.all_output()
    for number in (0, 1):
        assert "KeyError" in job.failure(number) and "rank 0 on 127.0.0.1" in job.failure(number)
    nobody_left(job)


def test_servers_serve_while_the_chief_answers_a_stop_signal(start: Callable[..., Hosts]) -> None:
    """The signal comes to the other host; the chief saves what the servers hold, and they are there until it has."""
    saves = """
def stopped(*_):
    for one in here.iterdir():
        os.kill(int(one.read_text()), 0)  # raises where it has ended
    print("SAVED", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stopped)
print("READY", flush=True)
time.sleep(600)
"""
    job = start(f"{ROLES}if role != 'chief': serve()\nall_serve()\n{saves}", 2)
    job.wait_for_host(0, "READY")
    job.processes[1].terminate()
    job.exit_codes()

    assert "SAVED" in job.output(0), job.all_output()
    nobody_left(job)


def test_a_host_that_is_killed_ends_the_job_with_its_name(start: Callable[..., Hosts]) -> None:
    job = start(
        f"{ROLES}if role != 'chief': serve()\nall_serve()\nprint('READY', flush=True)\ntime.sleep(600)", 2, code=SOON_GONE
    )
    job.wait_for_host(0, "READY")
    job.processes[1].kill()

    assert job.exit_codes()[0] != 0 and "127.0.0.2" in job.failure(0), job.all_output()
    nobody_left(job)


def test_a_server_that_ends_well_is_no_failure(start: Callable[..., Hosts]) -> None:
    script = f"""{ROLES}
if role == "ps" and index == 1:
    (here / "pid").write_text(str(os.getpid()))
    (here / "pid").rename(here / "ps1")
    sys.exit()
if role != "chief": serve()
all_serve()
while os.path.exists("/proc/" + (here / "ps1").read_text()): time.sleep(0.02)
"""
    job = start(script, 2)

    assert job.exit_codes() == [0, 0], job.all_output()


def test_the_platforms_flag_on_a_single_host_starts_no_servers(start: Callable[..., Hosts]) -> None:
    flagged = {"trainshed_distribution": "", "sagemaker_parameter_server_enabled": "true"}
    job = start("import os\nprint('TF_CONFIG' in os.environ, flush=True)\n", 1, **flagged)

    assert job.exit_codes() == [0] and "False" in job.output() and "no parameter server on a single host" in job.output()


def test_the_platforms_flag_runs_tensorflows_own_servers(start: Callable[..., Hosts], tmp_path: Path) -> None:
    """A stand-in for TensorFlow says what was asked of it."""
    flagged = {"trainshed_distribution": "", "sagemaker_parameter_server_enabled": "true"}
    stand_in = tmp_path / "packages/tensorflow"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text(
        ROLES.replace("import json", "import types, json")
        + "server = types.SimpleNamespace(join=serve)\n"
        + "distribute = types.SimpleNamespace(Server=lambda cluster, job_name, task_index: server)\n"
        + "train = types.SimpleNamespace(ClusterSpec=dict)\n"
    )
    with ended() as made:
        job = Hosts(tmp_path, ["127.0.0.1", "127.0.0.2"], f"{ROLES}assert role != 'ps'\n{CHIEF_ENDS}", {**JOB, **flagged})
        made.append(job)
        job.start(PYTHONPATH=f"{stand_in.parent}:{Path(__file__).parents[3] / 'toolkit'}")

        assert job.exit_codes() == [0, 0], job.all_output()
        assert len(list((tmp_path / "serving").glob("ps*"))) == 2


def test_hosts_with_nothing_to_do_are_refused(start: Callable[..., Hosts]) -> None:
    job = start(CHIEF_ENDS, 3, trainshed_roles='{"worker": 1, "ps": 1}')

    assert 0 not in job.exit_codes()
    assert "127.0.0.3 would have nothing to do" in job.failure(0), job.all_output()


# A worker that the chief keeps by a connection, and that fails when that is lost.
CONNECTED = f"""{ROLES}
import socket
def connected():
    host, port = told["cluster"]["chief"][0].split(":")
    if role == "chief":
        listener = socket.create_server((host, int(port)))
        return listener.accept()[0]
    while True:
        try:
            return socket.create_connection((host, int(port)))
        except ConnectionRefusedError:
            time.sleep(0.02)
if role == "ps":
    serve()
chief = connected()
if role == "worker":
    (here / "worker0").touch()
    if not chief.recv(1):
        raise ConnectionError("Connection closed by peer")
all_serve()
"""
LONE_WORKER = '{"worker": 1, "ps": 1}'  # on two hosts: it is the only process of the second


def test_workers_that_fail_because_the_chief_is_done_fail_nothing(start: Callable[..., Hosts]) -> None:
    for hosts in (1, 2):
        job = start(CONNECTED, hosts, f"hosts{hosts}", trainshed_roles=LONE_WORKER)

        assert job.exit_codes() == [0] * hosts, job.all_output()
        assert not any(job.failure(number) for number in range(hosts))
        nobody_left(job)


def test_a_chief_that_fails_is_the_cause_though_its_workers_fail_as_well(start: Callable[..., Hosts]) -> None:
    job = start(f"{CONNECTED}raise KeyError('accuracy')\n", 2, trainshed_roles=LONE_WORKER)

    assert job.exit_codes() == [1, 1], job.all_output()
    assert all("KeyError" in job.failure(number).splitlines()[0] for number in (0, 1)), job.all_output()


def test_workers_that_fail_because_the_chief_has_stopped_fail_nothing(start: Callable[..., Hosts]) -> None:
    stops = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nprint('READY', flush=True)\ntime.sleep(600)\n"
    job = start(f"{CONNECTED}{stops}", 2, trainshed_roles=LONE_WORKER)
    job.wait_for_host(0, "READY")
    job.processes[0].terminate()

    assert job.exit_codes() == [0, 0], job.all_output()
    nobody_left(job)


def test_a_chief_that_ends_at_once_ends_those_that_have_not_even_begun(start: Callable[..., Hosts]) -> None:
    deaf = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    job = start(f"{deaf}if os.environ['RANK'] != '0': time.sleep(600)\n", 2, code=KILLS_SOON)

    assert job.exit_codes() == [0, 0], job.all_output()
    nobody_left(job)


def test_unusable_roles_are_refused_by_every_host(start: Callable[..., Hosts]) -> None:
    job = start(CHIEF_ENDS, 2, trainshed_roles='{"wroker": 1}', trainshed_host_timeout_seconds=5)

    assert 0 not in job.exit_codes()
    for number in (0, 1):
        assert "trainshed_roles" in job.failure(number), job.all_output()
        assert "'wroker' is not a role: chief, worker, ps, evaluator are (did you mean 'worker'?)" in job.failure(number)


def test_a_plan_shows_what_each_process_runs_and_is_told(tmp_path: Path) -> None:
    with ended() as made:
        made.append(Hosts(tmp_path, ["127.0.0.1"], "", {**JOB, "trainshed_servers": "tensorflow"}))
        made[0].start(code="import sys; sys.argv.append('--dry-run')")

        assert made[0].exit_codes() == [0]
        shown = made[0].output()
    assert "3 of the job's 3 processes are on this host" in shown
    assert re.search(r"^worker 0 +\S+ train\.py$", shown, re.MULTILINE)
    assert re.search(r"^parameter server 0 \S+ \S+tensorflow_server\.py$", shown, re.MULTILINE)
    assert re.search(r'^environment of parameter server 0:\n(  .*\n)*  TF_CONFIG=.*"type": "ps"', shown, re.MULTILINE)


def test_on_one_host_all_processes_are_started_again_after_a_failure(start: Callable[..., Hosts]) -> None:
    first = """
mark = pathlib.Path(os.environ["TMPDIR"], f"begun by {role}")
first = not mark.exists()
mark.touch()
if first and role == "worker":
    while len(list(mark.parent.glob("begun by *"))) < 3:
        time.sleep(0.02)
    raise OSError("once")
if first or role != "chief":
    serve()
while not (here / "worker0").exists():  # files of the others are there from the first time
    time.sleep(0.02)
"""
    job = start(ROLES + first, 1, trainshed_max_restarts=1)

    assert job.exit_codes() == [0], job.all_output()
    assert [one["task"]["type"] for one in told(job) if one["task"]["type"] != "ps"] == ["chief"] * 2 + ["worker"] * 2
