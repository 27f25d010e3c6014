"""Whole jobs on several hosts. Each host is a `train` process of its own on a loopback address of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.hosts import ALOUD, CLOCK, LIMIT, Hosts, ended

STARTED = "import os, time\nprint('started', os.environ['RANK'], flush=True)\n"
WAITS = STARTED + "time.sleep(600)\n"


class Roster(Hosts):
    """N hosts of one job, 127.0.0.1 to 127.0.0.N, two ranks each."""

    def __init__(self, folder: Path, count: int, script: str, **settings: str) -> None:
        given = {"distribution": "torchrun", "processes_per_host": "2", "host_timeout_seconds": "180", **settings}
        names = [f"127.0.0.{number + 1}" for number in range(count)]
        super().__init__(folder, names, script, {f"trainshed_{name}": value for name, value in given.items()})

    def wait_until_started(self) -> None:
        """Until every rank of every host has printed its first line."""
        self.wait_for("started", 2)

    def wait_until_joining(self, number: int) -> None:
        """Until a host has read its job; what it does next is to look for the others."""
        deadline = time.monotonic() + LIMIT
        while not (self.base(number) / "output/data").exists():
            assert self.processes[number].poll() is None and time.monotonic() < deadline, self.output(number)
            time.sleep(0.05)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., Roster]]:
    """Makes jobs, and ends what they leave."""
    with ended() as made:

        def make(count: int, script: str, **settings: str) -> Roster:
            made.append(job := Roster(tmp_path, count, script, **settings))
            return job

        yield make


@pytest.mark.spine
def test_all_hosts_succeed_together(hosts):
    job = hosts(3, STARTED)
    job.start()
    assert job.exit_codes() == [0, 0, 0]
    assert all(job.succeeded(number) and not job.failure(number) for number in range(3))
    ranks = sorted(line.split()[-1] for number in range(3) for line in job.output(number).splitlines() if "started" in line)
    assert ranks == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("rank", [0, pytest.param(3, marks=pytest.mark.spine)])
def test_one_failing_rank_fails_every_host_with_its_own_reason(hosts, rank):
    job = hosts(3, STARTED + f"if os.environ['RANK'] == '{rank}': raise ValueError('bad batch')\ntime.sleep(600)\n")
    job.start()
    assert job.exit_codes() == [1, 1, 1]
    name = job.names[rank // 2]
    for number in range(3):
        assert job.failure(number).startswith(
            f"UserError: rank {rank} on {name} exited with 1: ValueError: bad batch\n  at train.py:3"
        )
        assert not job.succeeded(number)


@pytest.mark.spine
def test_the_real_cause_wins_over_a_rank_that_only_lost_its_peer(hosts):
    # Rank 2 raises first but ends only when rank 0, which notices, is gone.
    job = hosts(
        2,
        STARTED
        + "import atexit, signal\n"
        + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + "rank, here = os.environ['RANK'], '../../here'\n"
        + "open(here + rank, 'w').close()\n"
        + "while not all(os.path.exists(here + str(n)) for n in range(4)): time.sleep(0.01)\n"
        + "def wait():\n"
        + "    open('../../raised', 'w').close()\n"
        + "    while not os.path.exists('../../pid') or os.path.exists('/proc/' + open('../../pid').read()):\n"
        + "        time.sleep(0.01)\n"
        + "if rank == '2':\n    atexit.register(wait)\n    raise KeyError('the cause')\n"
        + "while not os.path.exists('../../raised'): time.sleep(0.01)\n"
        + "if rank == '0':\n"
        + "    open('../../pid.new', 'w').write(str(os.getpid()))\n    os.rename('../../pid.new', '../../pid')\n"
        + "    raise RuntimeError('[gloo] Connection closed by peer [127.0.0.2]:4242')\n",
    )
    job.start()
    assert all(code != 0 for code in job.exit_codes())
    for number in range(2):
        assert "rank 2 on 127.0.0.2 exited with 1: KeyError: 'the cause'" in job.failure(number).splitlines()[0]


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.spine)])
def test_a_host_that_vanishes_ends_all_others_and_is_named(hosts, victim):
    job = hosts(3, WAITS)
    job.start()
    job.wait_until_started()
    job.processes[victim].send_signal(signal.SIGKILL)
    codes = job.exit_codes()
    for number in {0, 1, 2} - {victim}:
        assert codes[number] == 69
        first = job.failure(number).splitlines()[0]
        assert first.startswith(f"ClusterError: {job.names[victim]}") and "vanished" in first
        assert not job.succeeded(number)


@pytest.mark.spine
def test_a_stop_signal_to_one_host_reaches_the_ranks_of_all(hosts):
    handler = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (print('handler ran', flush=True), sys.exit(0)))\n"
    )
    job = hosts(2, handler + WAITS)
    job.start()
    job.wait_until_started()
    job.processes[1].send_signal(signal.SIGTERM)
    assert job.exit_codes() == [0, 0]
    for number in range(2):
        assert job.output(number).count("handler ran") == 2
        assert not job.failure(number) and not job.succeeded(number)  # stopped: neither failed nor done


@pytest.mark.spine
def test_a_host_that_never_comes_is_named_on_the_others(hosts):
    job = hosts(3, STARTED)
    job.start(1)
    job.start(0, code=CLOCK + ALOUD)
    job.wait_for_host(0, "waiting for 127.0.0.3 (")
    job.turn_clock(0, 200)
    assert job.exit_codes() == [69, 69]
    for number in range(2):
        assert job.failure(number).startswith("ClusterError: 127.0.0.3 did not come within 180 s (2 of 3 hosts are there)")
    assert "started" not in job.output(0)


@pytest.mark.parametrize("broken", [0, 1])
def test_a_host_that_cannot_start_tells_the_others_why(hosts, broken):
    job = hosts(3, STARTED)
    (job.base(broken) / "code/train.py").unlink()
    others = [number for number in range(3) if number != broken]
    job.start(*others)
    for number in others:
        job.wait_until_joining(number)
    job.start(broken)
    assert job.exit_codes() == [1, 1, 1]
    assert all(job.failure(number).startswith("ProgramError: the job names no program") for number in range(3))


def test_a_host_that_fails_before_it_has_looked_for_its_place_tells_the_others(hosts):
    job = hosts(2, STARTED)
    (job.base(1) / "model").write_text("where the folder belongs")
    job.start()
    assert job.exit_codes() == [1, 1]
    for number in range(2):
        assert "host1/model cannot be written" in job.failure(number), job.failure(number)


def test_hosts_of_different_jobs_do_not_meet(hosts):
    job = hosts(2, STARTED)
    job.configure(1, epochs="7")
    job.start(0, code=CLOCK)
    job.start(1)
    job.processes[1].wait(LIMIT)
    job.turn_clock(0, 200)
    assert job.exit_codes() == [69, 69]
    assert "were not started for the same job" in job.failure(1).splitlines()[0]
    assert "127.0.0.2 did not come" in job.failure(0).splitlines()[0]


def test_a_host_that_is_done_waits_for_the_others(hosts):
    job = hosts(
        2,
        STARTED + "while os.environ['RANK'] == '0' and not os.path.exists('go'): time.sleep(0.05)\n",
    )
    job.start()
    job.wait_until_started()
    pids = Path(f"/proc/{job.processes[1].pid}/task/{job.processes[1].pid}/children")
    while pids.read_text().split():
        time.sleep(0.05)
    assert job.processes[1].poll() is None
    (job.base(0) / "code/go").touch()
    assert job.exit_codes() == [0, 0]
    assert all(job.succeeded(number) for number in range(2))
