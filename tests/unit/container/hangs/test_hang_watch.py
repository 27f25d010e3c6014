"""The watch over real processes that stay where they are, compute, or go on, on a clock that the test turns."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainshed.base.errors import EXIT_TIMEOUT
from trainshed.container.hangs.hang_watch import LATE_SECONDS, HangWatch, stops_on_hang
from trainshed.container.hangs.movement import describe
from trainshed.container.launchers.rank_environment import STACKS_HOOK
from trainshed.container.roster.roster import Alone, Roster
from trainshed.container.supervisor.launch_plan import LaunchPlan, ProcessSpec

LIMIT = 120.0  # seconds; a process that hangs must not hang the tests
SECONDS = 100.0  # of standing still that are a hang
SCRIPTS = {
    "stays.py": "import sys\nprint('ready', flush=True)\n" + "sys.stdin.readline()\n" * 9,
    "computes.py": "import hashlib\nprint('ready', flush=True)\nhashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)\n",
    "ends.py": "print('ready')\n",
}
TIMED_OUT = b"RuntimeError: Timed out waiting 1000ms for recv operation to complete\n"


class Program:
    """A started process, as the watch sees it."""

    def __init__(self, folder: Path, script: str, rank: int | None, helper: str) -> None:
        (folder / script).write_text(SCRIPTS[script])
        argv = (sys.executable, str(folder / script))
        self.spec = ProcessSpec(argv, {"PYTHONPATH": STACKS_HOOK}, str(folder), rank=rank, helper=helper)
        self.process = subprocess.Popen(argv, env=self.spec.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid
        assert self.process.stdout is not None and self.process.stdout.readline() == b"ready\n"
        if script == "stays.py":
            self.settle()

    @property
    def returncode(self) -> int | None:
        return self.process.poll()

    @property
    def alive(self) -> bool:
        return self.returncode is None

    def settle(self) -> None:
        """Until it waits for its next line."""
        until(lambda: describe(self.pid).startswith("waiting"))

    def go_on(self) -> None:
        """To its next line of code."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()


class Run:
    """A run whose ranks have printed nothing since it began."""

    def __init__(self, host: Host, ranks: list[Program]) -> None:
        self.host, self.ranks = host, ranks
        self.stopping = False
        self.began = host.now[0]

    def now(self) -> float:
        return self.host.now[0] - self.began

    silent = now

    def say(self, message: str) -> None:
        self.host.said.append(message)

    def stop_for_others(self, why: str, interrupted: bool, lost: bool) -> None:
        assert not interrupted and not lost
        self.stopping = True


class Joined(Roster):
    """The roster of one of the hosts of a job, which hear each other at once."""

    def __init__(self, hosts: list[Host], names: tuple[str, ...], rank: int) -> None:
        super().__init__(names, rank)
        self.hosts = hosts

    def send(self, message: dict[str, Any]) -> bool:
        for host in self.hosts[1:] if self.leads else self.hosts[:1]:
            host.roster.hear(self.names[self.rank], message)
        return True

    def present(self) -> list[str]:
        return list(self.names)

    def running(self) -> list[str]:
        return [host.name for host in self.hosts if any(rank.alive for rank in host.run.ranks)]

    def hang(self, failure: object) -> None:
        """Stops all hosts."""


class Host:
    """A host of a job that hangs after `SECONDS`. said: what its user was told. now: the clock of all hosts."""

    def __init__(self, folder: Path, roster: Roster, now: list[float], ranks: list[Program], stop: bool) -> None:
        self.now, self.roster, self.said = now, roster, []
        self.folder, self.name = folder, roster.names[roster.rank]
        self.run = Run(self, ranks)
        self.watch = HangWatch(
            self.name, str(folder), str(folder), self.said.append, roster, seconds=SECONDS, stop=stop, clock=lambda: now[0]
        )
        self.watch.turn(self.run)

    def reports(self) -> list[str]:
        return [path.read_text() for path in sorted(self.folder.glob("hang-*.txt"))]


class Job:
    """A job's hosts, and their clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = [1000.0]
        self.hosts: list[Host] = []
        self.programs: list[Program] = []

    def begin(self, *hosts: list[tuple[str, int | None, str]], stop: bool = True) -> Host:
        """Starts hosts: of each program its script, its rank and what it helps as. Returns the first host."""
        names = tuple(f"algo-{number + 1}" for number in range(len(hosts)))
        for number, programs in enumerate(hosts):
            (folder := self.folder / names[number]).mkdir()
            started = [Program(folder, *program) for program in programs]
            self.programs += started
            roster = Joined(self.hosts, names, number) if names[1:] else Alone("algo-1")
            self.hosts.append(Host(folder, roster, self.now, started, stop))
        return self.hosts[0]

    def turn(self) -> None:
        """As many turns as the processes take to say where they are: the clock stands still meanwhile."""

        def answered() -> bool:
            for host in self.hosts:
                host.watch.turn(host.run)
            return not any(host.watch._look or host.watch._contribution for host in self.hosts)

        until(answered)

    def wait(self, seconds: float, act: Callable[[], None] = lambda: None) -> None:
        """Lets time pass as the supervisor's loop does, which sleeps until the first watch needs a turn."""
        end = self.now[0] + seconds
        while self.now[0] < end:
            pause = min(host.watch.pause() for host in self.hosts)
            self.now[0] = min(end, self.now[0] + max(pause, 0.05))
            act()
            self.turn()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for program in made.programs:
        program.process.kill()
        program.process.communicate()


def test_ranks_that_stand_still_are_a_hang_after_the_set_time_and_not_before(job: Job) -> None:
    host = job.begin([("stays.py", 0, ""), ("stays.py", 1, "")])
    job.wait(SECONDS - 0.1)
    assert not host.reports() and not host.run.stopping
    job.wait(SECONDS / 4)

    (report,) = host.reports()
    assert report.startswith("hang report, nothing has moved for 100 s: ") and "all ranks are at stays.py:3" in report
    assert host.run.stopping and host.watch.failure is not None
    assert (host.watch.failure.kind, host.watch.failure.exit_code) == ("Hang", EXIT_TIMEOUT)


def test_a_job_that_is_to_go_on_is_reported_once_until_it_moves(job: Job) -> None:
    host = job.begin([("stays.py", 0, "")], stop=False)
    job.wait(3 * SECONDS)
    assert len(host.reports()) == 1 and not host.run.stopping and host.watch.failure is None
    assert host.said[-1] == "the job goes on (trainshed_on_hang)"
    job.programs[0].go_on()
    job.programs[0].settle()
    job.wait(2 * SECONDS)

    assert len(host.reports()) == 2


def test_a_single_program_is_called_the_script(job: Job) -> None:
    host = job.begin([("stays.py", None, "")], stop=False)
    job.wait(2 * SECONDS)

    assert "the script on algo-1 is at stays.py:3" in host.reports()[0]


def test_ranks_that_print_nothing_but_compute_are_not_taken_for_hung(job: Job) -> None:
    """A worker beside a chief that waits for it; such a worker is the chief's helper."""
    host = job.begin([("stays.py", 0, ""), ("computes.py", 1, "worker 0"), ("stays.py", None, "parameter server 0")])
    job.wait(2.2 * SECONDS)

    assert not host.reports() and not host.run.stopping


def test_ranks_that_print_nothing_but_go_on_are_not_taken_for_hung(job: Job) -> None:
    host = job.begin([("stays.py", 0, "")])

    def go_on() -> None:
        job.programs[0].go_on()
        job.programs[0].settle()

    job.wait(2.5 * SECONDS, go_on)

    assert not host.reports() and not host.run.stopping


def test_a_host_whose_ranks_have_ended_is_named_when_the_others_wait_for_it(job: Job) -> None:
    first = job.begin([("stays.py", 0, "")], [("ends.py", 1, "")])
    second = job.hosts[1]
    until(lambda: not second.run.ranks[0].alive)
    second.watch.run_over()
    job.wait(2 * SECONDS)

    sentence = "rank 1 on algo-2 has ended (exit status 0)"
    assert first.watch.failure is not None and sentence in first.watch.failure.summary
    assert sentence in first.reports()[0] and sentence in second.said[-1]


def test_a_rank_that_says_that_others_did_not_come_has_a_report_made_and_is_waited_for(job: Job) -> None:
    host = job.begin([("stays.py", 0, ""), ("stays.py", 1, "")])
    host.watch.printed(host.run.ranks[0], TIMED_OUT)
    assert host.watch.busy()
    job.turn()

    assert host.watch.late == "rank 1 on algo-1 is at stays.py:3 while rank 0 has given up waiting in a collective"
    assert not host.watch.busy()
    host.watch.printed(host.run.ranks[1], TIMED_OUT)
    job.turn()
    assert len(host.reports()) == 1 and host.watch.gave_up == {0, 1}
    assert not host.run.stopping, "the job goes on as it would"


def test_a_rank_that_says_so_when_host_0_is_silent_is_waited_for_no_longer_than_that(job: Job) -> None:
    host = job.begin([("stays.py", 0, "")], [("stays.py", 1, "")])
    job.hosts.pop(0)
    second = job.hosts[0]
    second.watch.printed(second.run.ranks[0], TIMED_OUT)
    job.now[0] += LATE_SECONDS - 0.1
    assert second.watch.busy()
    job.now[0] += 0.2

    assert not second.watch.busy() and not second.watch.late and not host.reports()


@pytest.mark.parametrize(
    ("launcher", "asked", "stops"),
    [
        ("torchrun", None, True),
        ("torchrun", "continue", False),
        ("script", None, False),
        ("script", "stop", True),
        ("ray", None, False),
    ],
)
def test_a_hang_stops_ranks_and_not_a_single_program(job_tree: Any, launcher: str, asked: str | None, stops: bool) -> None:
    job_tree.configure(hyperparameters={"trainshed_on_hang": asked} if asked else {})

    assert stops_on_hang(job_tree.read(), LaunchPlan(processes=(), launcher=launcher)) is stops
