"""`trainshed_max_restarts` on several hosts: all of them start their ranks again together, or none does."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.free_ports import free_ports
from support.hosts import SOON_GONE, Hosts, ended

pytestmark = pytest.mark.safety

# `here` is shared by all hosts, `attempt` counts from 0. Each rank leaves its mark when it runs, and looks for those of the
# attempts before it: nothing of them may live any more.
BEGIN = """\
import os, signal, sys, time
from pathlib import Path
here, attempt = Path('../..').resolve(), int(os.environ['TORCHELASTIC_RESTART_COUNT'])
rank = int(os.environ.get('RANK', os.environ['SM_CURRENT_HOST_RANK']))
steps = Path(os.environ['SM_CHECKPOINT_DIR'])
steps.mkdir(exist_ok=True)
for mark in here.glob('pid.*'):
    if int(mark.name.split('.')[1]) < attempt:
        assert not os.path.exists(f'/proc/{mark.read_text()}'), f'{mark.name} lives'
fresh = here / f'new.{attempt}.{rank}'
fresh.write_text(str(os.getpid()))
fresh.rename(here / f'pid.{attempt}.{rank}')
print(f'begun rank={rank} attempt={attempt} of={os.environ["TORCHELASTIC_MAX_RESTARTS"]}', flush=True)
def wait(count, of=attempt):
    while len(list(here.glob(f'pid.{of}.*'))) < count: time.sleep(0.02)
def hold():
    time.sleep(600)
"""
DONE = "wait(int(os.environ.get('WORLD_SIZE', os.environ['SM_HOST_COUNT'])))\n"
NO_SHARED_MEMORY = "--mca btl self,tcp --mca coll ^sm,han,xhc,acoll"
# For `Hosts.start`: says when this host waits for what the hosts do next, and the first one when it knows of a stop signal.
TELLS_OF_STOPS = """
from trainshed.container.roster.leader import Leader
from trainshed.container.shared_restarts import SharedRestarts
after, stop = SharedRestarts.after, Leader._stop
def telling(self, ended):
    print("waits for the others", flush=True)
    return after(self, ended)
def stopping(self, host, why, number=0):
    stop(self, host, why, number)
    if number:
        print("knows of the stop", flush=True)
SharedRestarts.after, Leader._stop = telling, stopping
"""
MPI = "Open MPI" in subprocess.getoutput("mpirun --version 2>&1")
# Host 0 has the checkpoint of step n after the n-th attempt.
SAVES = "if rank == 0: (steps / f'step-{attempt + 1}').touch()\n"


@pytest.fixture
def start() -> Iterator[Callable[..., Hosts]]:
    """Starts a job on so many hosts; of MPI one with two ranks on each."""
    folder = Path(tempfile.mkdtemp(prefix="again"))  # a short path: sockets live in it
    with ended() as made:

        def make(
            script: str, count: int = 2, kind: str = "script", shared: bool = True, code: str = "", **settings: object
        ) -> Hosts:
            given: dict[str, object] = {"distribution": kind, "max_restarts": 5, "host_timeout_seconds": 180, **settings}
            more = {f"trainshed_{name}": value for name, value in given.items()}
            if kind == "mpi":
                more["sagemaker_mpi_num_of_processes_per_host"] = "2"
                more["sagemaker_mpi_custom_mpi_options"] = json.dumps(NO_SHARED_MEMORY)
            job = Hosts(folder, [f"127.0.0.{number + 2}" for number in range(count)], BEGIN + script, more)
            for number in range(1, count if shared else 0):  # all hosts have the same checkpoints
                os.symlink(job.base(0) / "checkpoints", job.base(number) / "checkpoints")
            (job.base(0) / "checkpoints").mkdir()
            made.append(job)
            job.start(code=code)
            return job

        yield make
    shutil.rmtree(folder)


def record(job: Hosts, number: int) -> dict[str, object]:
    path = job.base(number) / "output/data/run" / f"{job.names[number]}.json"
    found: dict[str, object] = json.loads(path.read_text())
    return found


def begun(job: Hosts) -> list[tuple[int, int]]:
    """(attempt, rank) of each rank that has begun, on all hosts."""
    return sorted((int(path.name.split(".")[1]), int(path.name.split(".")[2])) for path in job.folder.glob("pid.*"))


KINDS = [
    pytest.param("script", marks=pytest.mark.spine),
    "tensorflow",
    "jax",
    "torchrun",
    pytest.param("mpi", marks=pytest.mark.skipif(not MPI, reason="Open MPI's mpirun is not installed")),
]


@pytest.mark.parametrize("kind", KINDS)
def test_all_hosts_start_again_together_from_the_newest_checkpoint(start: Callable[..., Hosts], kind: str) -> None:
    """The first failure is on the last host, the second one on the first; each is the reason that all hosts give."""
    job = start(
        f"{DONE}if (attempt, rank) in ((0, int(os.environ.get('WORLD_SIZE', 2)) - 1), (1, 0)):\n"
        "    (steps / f'step-{10 * (attempt + 1)}').touch()\n"
        "    raise ValueError(f'bad batch {attempt}')\n"
        "if attempt < 2: hold()\n",
        kind=kind,
        processes_per_host=1 if kind in ("script", "tensorflow", "jax") else 2,
    )

    assert job.exit_codes() == [0, 0], job.all_output()
    ranks = 4 if kind in ("torchrun", "mpi") else 2
    assert begun(job) == [(attempt, rank) for attempt in range(3) for rank in range(ranks)]
    for number in range(2):
        assert "restart 1 of 5, resuming from step 10: " in job.output(number)
        assert "restart 2 of 5, resuming from step 20: " in job.output(number)
        assert job.succeeded(number) and not job.failure(number)
        reasons = [one["reason"] for one in record(job, number)["restarts"]]  # type: ignore[attr-defined]
        assert ["bad batch 0" in reasons[0], "bad batch 1" in reasons[1], len(reasons)] == [True, True, 2]
        assert f"on {job.names[1]}" in reasons[0] and f"on {job.names[0]}" in reasons[1]


def test_what_fails_again_at_once_ends_after_three_times_and_the_failure_file_tells_of_all(
    start: Callable[..., Hosts],
) -> None:
    job = start("wait(2)\nif rank == 1: raise SystemExit(3 + attempt)\nhold()\n", max_restarts=50)

    assert job.exit_codes() == [5, 5], job.all_output()
    for number in range(2):
        assert "not restarted: 3 failures in a row without a newer checkpoint" in job.output(number)
        first, *_ = job.failure(number).splitlines()
        assert "127.0.0.3 exited with 5" in first
        assert "the ranks had been started again before, after:\n  1. " in job.failure(number)
        assert re.search(r"  1\. .*exited with 3.*\n  2\. .*exited with 4", job.failure(number)), job.failure(number)
        assert not job.succeeded(number)


@pytest.mark.spine
def test_the_budget_is_that_of_the_job_and_failures_on_two_hosts_at_once_are_one(start: Callable[..., Hosts]) -> None:
    job = start(f"{SAVES}wait(2)\nraise ValueError(f'{{attempt}} on {{rank}}')\n", max_restarts=2)

    assert job.exit_codes() == [1, 1], job.all_output()
    assert begun(job) == [(attempt, rank) for attempt in range(3) for rank in range(2)]
    for number in range(2):
        assert "restart 2 of 2, resuming from step 2: " in job.output(number)
        assert "not restarted: all 2 restarts are used up" in job.output(number)


@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_host_that_is_killed_ends_the_job_also_after_a_restart(
    start: Callable[..., Hosts], attempt: int, victim: int
) -> None:
    once = f"if (attempt, rank) == (0, 2) and {attempt}: raise ValueError('once')\n"
    job = start(f"wait(3)\n{once}hold()\n", 3, code=SOON_GONE)
    for number in range(3):
        job.wait_for_host(number, f"attempt={attempt}")
    job.processes[victim].send_signal(signal.SIGKILL)

    codes = job.exit_codes()
    for number in {0, 1, 2} - {victim}:
        assert codes[number] == 69, job.all_output()
        assert f"{job.names[victim]}" in job.failure(number).splitlines()[0]
        assert "vanished" in job.failure(number).splitlines()[0]
        assert ("the ranks had been started again before" in job.failure(number)) == bool(attempt)
    assert max(begun(job))[0] == attempt, "no further attempt"


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stop_signal_while_hosts_wait_to_start_again_ends_the_job(start: Callable[..., Hosts], stopped: int) -> None:
    """The other host's rank takes its time, so that the one with the failure waits for it."""
    other = 1 - stopped
    script = f"""
if rank == {other}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
wait(2)
if rank == {stopped}: raise ValueError('once')
while not (here / 'go').exists(): time.sleep(0.02)
"""
    job = start(script, code=TELLS_OF_STOPS)
    job.wait_for_host(other, "stopping: ")
    job.wait_for_host(stopped, "waits for the others")
    job.processes[stopped].send_signal(signal.SIGTERM)
    job.wait_for_host(0, "knows of the stop")
    (job.folder / "go").touch()

    assert 0 not in job.exit_codes(), job.all_output()
    assert begun(job) == [(0, 0), (0, 1)]
    for number in range(2):
        assert "ValueError: once" in job.failure(number)
        assert f"not restarted: {job.names[stopped]} was asked to stop" in job.output(number)


def test_a_stop_signal_after_a_restart_stops_all_hosts(start: Callable[..., Hosts]) -> None:
    job = start("wait(2)\nif (attempt, rank) == (0, 0): raise ValueError('once')\nhold()\n")
    for number in range(2):
        job.wait_for_host(number, "attempt=1")
    job.processes[1].send_signal(signal.SIGTERM)

    assert job.exit_codes() == [143, 143], job.all_output()
    assert begun(job) == [(attempt, rank) for attempt in range(2) for rank in range(2)]
    for number in range(2):
        assert job.failure(number).startswith("Interrupted: ")
        assert job.output(number).count("restart 1 of 5") == 1 and "restart 2" not in job.output(number)


def test_a_host_whose_script_has_ended_starts_again_with_the_others(start: Callable[..., Hosts]) -> None:
    job = start(
        "wait(2)\nif rank == 0: sys.exit()\n"
        "if attempt == 0:\n"
        "    while os.path.exists(f'/proc/{(here / \"pid.0.0\").read_text()}'): time.sleep(0.02)\n"
        "    raise ValueError('once')\n"
    )

    assert job.exit_codes() == [0, 0], job.all_output()
    assert begun(job) == [(attempt, rank) for attempt in range(2) for rank in range(2)]
    assert all(job.succeeded(number) for number in range(2))


LISTENS = """
import socket, subprocess
port = int(os.environ['MASTER_PORT'])
print(f'port {port}', flush=True)
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
"""


def test_a_process_that_a_rank_has_left_on_the_port_is_gone_before_the_next_attempt(start: Callable[..., Hosts]) -> None:
    left = "import socket, time; s = socket.create_server(('', PORT)); open('LISTENS', 'w').close(); time.sleep(600)"
    job = start(
        LISTENS + "if rank == 0 and attempt == 0:\n"
        f"    code = \"{left}\".replace('PORT', str(port)).replace('LISTENS', str(here / 'listens'))\n"
        "    subprocess.Popen([sys.executable, '-c', code], start_new_session=True)\n"
        "    while not (here / 'listens').exists(): time.sleep(0.02)\n"
        "    raise ValueError('once')\n"
        "if rank == 0: server.bind(('', port)), server.listen()\n"
    )

    assert job.exit_codes() == [0, 0], job.all_output()
    assert job.all_output().count(f"port {job.port}\n") == 4


@pytest.mark.parametrize("kind", ["torchrun", "tensorflow"])
def test_a_port_that_something_else_has_taken_is_changed_on_all_hosts(start: Callable[..., Hosts], kind: str) -> None:
    """Of TensorFlow's workers the second listens, on the port after the next."""
    listener, offset = (1, 1) if kind == "tensorflow" else (0, 0)
    job = start(
        "import json\n"
        "told = json.loads(os.environ.get('TF_CONFIG', '{}')).get('cluster', {}).get('worker', ())\n"
        "print('ports', os.environ['MASTER_PORT'], *(one.split(':')[1] for one in told), flush=True)\n"
        "wait(2)\n"
        "while attempt == 0 and not (here / 'taken').exists(): time.sleep(0.02)\n"
        f"if (attempt, rank) == (0, {listener}): raise ValueError('once')\n"
        "if attempt == 0: hold()\n",
        kind=kind,
        processes_per_host=1,
        roster_port=free_ports(),
    )
    job.wait_for("ports")
    with socket.create_server(("", job.port + offset)):
        (job.folder / "taken").touch()
        codes = job.exit_codes()

    assert codes == [0, 0], job.all_output()
    first, again = job.port, job.port + 16
    for number in range(2):
        assert f"port {first} is taken on {job.names[listener]}, so port {again} takes its place" in job.output(number)
        told = [line.partition("ports ")[2].split() for line in job.output(number).splitlines() if "ports " in line]
        assert [line[0] for line in told] == [str(first), str(again)]
        if kind == "tensorflow":
            assert [line[1:] for line in told] == [[str(port), str(port + 1)] for port in (first, again)]


def test_hosts_with_different_checkpoints_are_told_of_that(start: Callable[..., Hosts]) -> None:
    job = start(
        "if rank == 1: (steps / 'step-3').touch()\n"
        "wait(2)\nif (attempt, rank) == (0, 1): raise ValueError('once')\nif attempt == 0: hold()\n",
        shared=False,
    )

    assert job.exit_codes() == [0, 0], job.all_output()
    for number in range(2):
        assert "restart 1 of 5, resuming from step 3: " in job.output(number)
        assert "the hosts have different newest checkpoints (127.0.0.2 none, 127.0.0.3 step 3)" in job.output(number)


def test_a_parameter_server_and_a_chief_that_fail_bring_all_back(start: Callable[..., Hosts]) -> None:
    """Four processes: the chief with a server on the first host, a worker with a server on the second."""
    job = start(
        "role = os.environ['ROLE_NAME']\nwait(4)\n"
        "if (attempt, rank) == (0, 3): os.kill(os.getpid(), 9)\n"
        "if (attempt, role) == (1, 'chief'):\n    (steps / 'step-7').touch()\n    raise ValueError('the chief')\n"
        "if role != 'chief' or attempt == 0: hold()\n",
        kind="parameter_server",
    )

    assert job.exit_codes() == [0, 0], job.all_output()
    assert begun(job) == [(attempt, rank) for attempt in range(3) for rank in range(4)]
    for number in range(2):
        assert "restart 1 of 5, from the beginning: parameter server 1 on 127.0.0.3 was killed by SIGKILL" in job.output(
            number
        )
        assert "restart 2 of 5, resuming from step 7: rank 0 on 127.0.0.2" in job.output(number)


def test_what_an_attempt_has_left_of_its_failure_does_not_speak_for_the_next(start: Callable[..., Hosts]) -> None:
    """`@record`'s file, and the script's own reason; the second attempt is killed, and says nothing itself."""
    job = start(
        SAVES + "import json\nwait(2)\n"
        "if rank == 0 and attempt == 0:\n"
        "    stack = {'py_callstack': 'Traceback (most recent call last):\\n  File \"train.py\", line 1\\nKeyError: 17'}\n"
        "    told = {'message': {'message': 'x', 'extraInfo': stack}}\n"
        "    Path(os.environ['TORCHELASTIC_ERROR_FILE']).write_text(json.dumps(told))\n"
        "    (here / 'host0/output/failure').write_text('my own reason')\n"
        "    sys.exit(1)\n"
        "if rank == 0: os.kill(os.getpid(), 9)\nhold()\n",
        kind="torchrun",
        processes_per_host=1,
        max_restarts=1,
    )

    assert job.exit_codes() == [137, 137], job.all_output()
    assert job.failure(0).startswith("UserError: rank 0 on 127.0.0.2 was killed by SIGKILL"), job.failure(0)
    assert "the script gave its own reason: my own reason" in job.output(0)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_host_that_cannot_start_its_ranks_again_ends_the_job_with_its_reason(
    start: Callable[..., Hosts], victim: int
) -> None:
    job = start(
        f"import shutil\nwait(2)\nif (attempt, rank) == (0, {victim}):\n"
        "    shutil.rmtree(os.getcwd())\n    raise ValueError('once')\nhold()\n"
    )

    assert 0 not in job.exit_codes(), job.all_output()
    for number in range(2):
        assert job.failure(number).startswith("LaunchError: "), job.failure(number)
        assert "cannot be started: No such file or directory" in job.failure(number).splitlines()[0]
        assert "the ranks had been started again before, after:\n  1. " in job.failure(number)
    assert (0, victim) in begun(job) and (1, victim) not in begun(job)


@pytest.mark.skipif(not MPI, reason="Open MPI's mpirun is not installed")
def test_mpirun_is_started_again_on_one_host(start: Callable[..., Hosts]) -> None:
    job = start("wait(2)\nif (attempt, rank) == (0, 1): raise ValueError('once')\nif attempt == 0: hold()\n", 1, "mpi")

    assert job.exit_codes() == [0], job.all_output()
    assert begun(job) == [(attempt, rank) for attempt in range(2) for rank in range(2)]
