"""Host 0's half of hang reports, with hosts that only exist as messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainshed.container.hangs.activity import COLLECTIVE, Activity
from trainshed.container.hangs.gathering import GATHER_SECONDS, Gatherer
from trainshed.container.hangs.hang_report import HostReport
from trainshed.container.hangs.stragglers import Where
from trainshed.container.roster.roster import Roster

HANG = "nothing has moved for 8 s"


class Hosts(Roster):
    """Host 0's roster of three hosts; keeps what is sent."""

    def __init__(self) -> None:
        super().__init__(("algo-1", "algo-2", "algo-3"), 0)
        self.sent: list[dict[str, Any]] = []
        self.ended: set[str] = set()

    def send(self, message: dict[str, Any]) -> bool:
        self.sent.append(message)
        return True

    def present(self) -> list[str]:
        return list(self.names)

    def running(self) -> list[str]:
        return [name for name in self.names if name not in self.ended]


def part(host: str, moved: bool = False) -> HostReport:
    where = Where(int(host[-1]) - 1, host, Activity(COLLECTIVE, "all_reduce", "train.py:60"))
    return HostReport(host, (where,), f"the stacks of {host}", moved)


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


@pytest.fixture
def gatherer(tmp_path: Path, hosts: Hosts) -> Gatherer:
    return Gatherer("algo-1", str(tmp_path), hosts)


def test_a_job_hangs_when_every_host_that_still_runs_stands_still(gatherer: Gatherer, hosts: Hosts) -> None:
    assert not gatherer.all_stand_still()
    gatherer.note("algo-1", True)
    gatherer.note("algo-2", True)
    assert not gatherer.all_stand_still()
    hosts.ended.add("algo-3")
    assert gatherer.all_stand_still()
    gatherer.note("algo-2", False)
    assert not gatherer.all_stand_still()


def test_all_parts_make_a_report_that_the_other_hosts_hear_of(gatherer: Gatherer, hosts: Hosts, tmp_path: Path) -> None:
    number = gatherer.ask(hang=HANG)
    assert hosts.sent == [{"type": "hang", "do": "look", "id": number}]
    for host in hosts.names:
        assert gatherer.finished() is None
        gatherer.take_message(host, {"id": number, "part": part(host).plain()})
    request = gatherer.finished()
    assert request is not None
    reported = gatherer.report(request)

    assert reported is not None
    report, path, hang = reported
    assert hang and report.why == HANG and not report.missing
    assert Path(path).read_text().count("the stacks of") == 3
    assert hosts.sent[-1] == {"type": "hang", "do": "told", "sentence": report.verdict.sentence}
    assert gatherer.finished() is None


def test_a_host_that_does_not_answer_in_time_is_named(hosts: Hosts, tmp_path: Path) -> None:
    now = [5.0]
    gatherer = Gatherer("algo-1", str(tmp_path), hosts, lambda: now[0])
    number = gatherer.ask(asked="asked for on algo-2")
    gatherer.take(number, part("algo-1"))
    now[0] += GATHER_SECONDS
    assert gatherer.finished() is None
    now[0] += 0.1
    request = gatherer.finished()
    assert request is not None
    reported = gatherer.report(request)

    assert reported is not None and reported[0].missing == ("algo-2", "algo-3") and not reported[2]


def test_a_hang_that_moves_again_is_not_reported_unless_somebody_asked(gatherer: Gatherer, hosts: Hosts) -> None:
    for asked in ("", "asked for on algo-2"):
        number = gatherer.ask(hang=HANG)
        if asked:
            assert gatherer.ask(asked=asked) == 0  # while it is in the making
        for host in hosts.names:
            gatherer.take(number, part(host, moved=host == "algo-2"))
        request = gatherer.finished()
        assert request is not None
        reported = gatherer.report(request)
        if not asked:
            assert reported is None
        else:
            assert reported is not None and reported[0].why == asked and not reported[2]


def test_a_hang_is_reported_once_until_something_moves(gatherer: Gatherer, hosts: Hosts) -> None:
    for host in hosts.names:
        gatherer.note(host, True)
    number = gatherer.ask(hang=HANG)
    for host in hosts.names:
        gatherer.take(number, part(host))
    request = gatherer.finished()
    assert request is not None
    gatherer.report(request)
    assert not gatherer.all_stand_still()
    gatherer.note("algo-3", False)
    gatherer.note("algo-3", True)

    assert gatherer.all_stand_still()


@pytest.mark.parametrize("message", [{}, {"part": None}, {"part": {"host": "algo-2"}}, {"id": 1, "part": "text"}])
def test_a_part_that_cannot_be_read_is_ignored(gatherer: Gatherer, message: dict[str, Any]) -> None:
    gatherer.ask(hang=HANG)
    gatherer.take_message("algo-2", message)

    assert gatherer.request is not None and gatherer.request.parts == {}


def test_a_part_of_an_earlier_report_or_of_another_host_is_ignored(gatherer: Gatherer) -> None:
    number = gatherer.ask(hang=HANG)
    gatherer.take_message("algo-2", {"id": number - 1, "part": part("algo-2").plain()})
    gatherer.take_message("algo-2", {"id": number, "part": part("algo-3").plain()})

    assert gatherer.request is not None and gatherer.request.parts == {}
