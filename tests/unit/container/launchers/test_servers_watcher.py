"""When workers, parameter servers and evaluators are ended, on a clock that the test turns."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from trainshed.container.launchers.parameter_server.servers_watcher import KILL_AFTER, SAY_AFTER, STOP_MARGIN, ServersWatcher
from trainshed.container.roster.roster import Roster
from trainshed.container.supervisor.launch_plan import ProcessSpec

GRACE = 60.0
SERVER, EVALUATOR = "parameter server 0", "evaluator 0"


class Process:
    """A process that only exists here."""

    def __init__(self, pid: int, helper: str) -> None:
        self.spec = ProcessSpec(("train",), {}, "/", helper=helper)
        self.pid = pid
        self.returncode: int | None = None

    @property
    def alive(self) -> bool:
        return self.returncode is None


class Run:
    """A run of a chief (""), or of what serves one, and what is done to it."""

    def __init__(self, *names: str) -> None:
        self.time = 0.0
        self.stopping = False
        self.ranks = [Process(number + 1, name) for number, name in enumerate(names)]
        self.said: list[str] = []
        self.asked: list[str] = []
        self.killed: list[str] = []
        self.dismissed: set[str] = set()

    def now(self) -> float:
        return self.time

    def say(self, message: str) -> None:
        self.said.append(message)

    def dismiss(self, helper: Process) -> None:
        self.dismissed.add(helper.spec.helper)

    def end_helper(self, helper: Process) -> None:
        self.asked.append(helper.spec.helper)

    def kill_helper(self, helper: Process) -> None:
        self.killed.append(helper.spec.helper)


class Hosts(Roster):
    """Two hosts. come: letters that are to come; gone: hosts that are lost."""

    def __init__(self, rank: int) -> None:
        super().__init__(("algo-1", "algo-2"), rank)
        self.sent: list[tuple[int, dict[str, Any]]] = []
        self.come: list[tuple[int, dict[str, Any]]] = []
        self.gone: set[int] = set()

    def post(self, to: int, body: dict[str, Any]) -> None:
        self.sent.append((to, body))

    def letters(self) -> list[tuple[int, dict[str, Any]]]:
        come, self.come = self.come, []
        return come

    def absent(self) -> set[int]:
        return self.gone


class Host:
    """A host of such a job."""

    def __init__(self, rank: int, *names: str) -> None:
        self.roster, self.run = Hosts(rank), Run(*names)
        self.watcher = ServersWatcher(2, GRACE, self.roster)
        self.turn(0.0)

    def turn(self, seconds: float) -> None:
        self.run.time += seconds
        self.watcher.turn(self.run)  # type: ignore[arg-type]

    def end(self, number: int, returncode: int = 0) -> None:
        self.run.ranks[number].returncode = returncode


@pytest.fixture
def chiefs_host() -> Host:
    return Host(0, "", SERVER)


def test_servers_serve_until_the_chief_is_done_and_the_other_hosts_hear_of_it(chiefs_host: Host) -> None:
    chiefs_host.turn(1000.0)
    assert chiefs_host.watcher.busy() and not chiefs_host.run.asked
    chiefs_host.end(0)
    chiefs_host.turn(0.1)

    assert chiefs_host.run.asked == [SERVER] and SERVER in chiefs_host.run.dismissed and not chiefs_host.watcher.busy()
    assert chiefs_host.roster.sent == [(1, {"type": "chief done"})]


def test_a_server_that_does_not_end_is_killed(chiefs_host: Host) -> None:
    chiefs_host.end(0)
    chiefs_host.turn(0.1)
    chiefs_host.turn(KILL_AFTER)
    assert not chiefs_host.run.killed
    chiefs_host.turn(0.1)

    assert chiefs_host.run.killed == [SERVER] and chiefs_host.run.asked == [SERVER]


def test_servers_serve_while_the_chief_answers_a_stop_signal(chiefs_host: Host) -> None:
    """It saves what they hold."""
    chiefs_host.run.stopping = True
    for _ in range(10):
        chiefs_host.turn(GRACE / 10)
    assert not chiefs_host.run.asked
    chiefs_host.end(0, -signal.SIGTERM)
    chiefs_host.turn(0.1)

    assert chiefs_host.run.asked == [SERVER] and chiefs_host.roster.sent


def test_a_stop_ends_servers_some_time_after_the_grace_whatever_the_chief_does(chiefs_host: Host) -> None:
    chiefs_host.run.stopping = True
    chiefs_host.turn(0.0)
    chiefs_host.turn(GRACE + STOP_MARGIN)
    assert not chiefs_host.run.asked
    chiefs_host.turn(0.1)

    assert chiefs_host.run.asked == [SERVER]


def test_a_chief_that_fails_ends_nobody_until_the_job_stops(chiefs_host: Host) -> None:
    chiefs_host.end(0, 1)
    chiefs_host.turn(0.5)
    assert not chiefs_host.run.asked and chiefs_host.watcher.busy()
    chiefs_host.run.stopping = True
    chiefs_host.turn(0.5)

    assert chiefs_host.run.asked == [SERVER]


def test_a_server_that_ends_well_before_the_chief_is_said_once(chiefs_host: Host) -> None:
    chiefs_host.end(1)
    chiefs_host.turn(0.1)
    chiefs_host.turn(SAY_AFTER)
    assert not chiefs_host.run.said
    for _ in range(3):
        chiefs_host.turn(0.1)

    assert chiefs_host.run.said == [f"{SERVER} has ended, and the chief is not done yet"]
    assert not chiefs_host.watcher.done


def test_an_evaluator_gets_the_grace_for_the_chiefs_last_checkpoint() -> None:
    host = Host(0, "", EVALUATOR)
    host.end(0)
    host.turn(0.0)
    host.turn(GRACE - 0.1)
    assert not host.run.asked
    host.turn(0.1)

    assert host.run.asked == [EVALUATOR]


@pytest.mark.parametrize("lost", [False, True])
def test_another_host_ends_its_own_when_it_hears_that_the_chief_is_done_or_nobody_can_tell(lost: bool) -> None:
    host = Host(1, SERVER)
    host.turn(1000.0)
    assert not host.run.asked
    if lost:
        host.roster.gone = {0}
    else:
        host.roster.come = [(0, {"type": "chief done"})]
    host.turn(0.1)

    assert host.run.asked == [SERVER]
