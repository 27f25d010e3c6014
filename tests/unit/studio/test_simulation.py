"""Jobs that are played as events: known interruptions, lost hosts, spares, copies that are lost with their hosts."""

from __future__ import annotations

import pytest

from trainshed.studio.forecast import Case, Expected
from trainshed.studio.simulation import Fleet, replayed, simulated, spread

CASE = Case(between=1_000.0, stall=1.0, restart=10.0, interval=99.0)
COPIES = CASE.replace(memory=9.0, memory_stall=0.5, stall=5.5)  # a copy each 10 s, 1 s of them stalls


def seconds(found: Expected, of: float) -> list[float]:
    """Steps that counted, done again, stalled, starting again."""
    return [round(of * part, 6) for part in (found.goodput, found.again, found.stalled, found.restarting)]


def test_what_an_interruption_costs_is_counted_to_the_second() -> None:
    assert seconds(replayed(Fleet(CASE), 1_000.0, []), 1_000) == [990, 0, 10, 0]
    assert seconds(replayed(Fleet(CASE), 1_000.0, [250.0]), 1_000) == [198 + 693 + 40, 50, 2 + 7, 10]
    assert seconds(replayed(Fleet(CASE), 1_000.0, [250.0, 256.0]), 1_000) == [198 + 693 + 34, 50, 9, 16]
    assert seconds(replayed(Fleet(CASE), 1_000.0, [995.0]), 1_000) == [891, 95, 9, 5]


def test_copies_lose_what_came_after_the_last_one() -> None:
    assert seconds(replayed(Fleet(COPIES, 4), 1_000.0, [255.0]), 1_000) == pytest.approx([225 + 662, 5, 25 + 73, 10], abs=2)


def test_a_lost_host_is_waited_for_unless_a_spare_is_ready() -> None:
    fleet = Fleet(CASE, 8, lost=1.0, replaced_in=300.0)
    assert seconds(replayed(fleet, 1_000.0, [100.0]), 1_000)[3] == 310
    spared = fleet.replace(spares=1)
    assert seconds(replayed(spared, 1_000.0, [100.0]), 1_000)[3] == 10
    assert seconds(replayed(spared, 1_000.0, [100.0, 200.0]), 1_000)[3] == 10 + 210  # its replacement comes at 400
    assert seconds(replayed(spared, 1_000.0, [100.0, 400.0]), 1_000)[3] == 20


def test_a_host_that_is_lost_with_its_neighbour_sends_the_job_back_to_the_disk() -> None:
    both, neighbours = [255.0, 256.0], Fleet(COPIES, 2, lost=1.0)
    found = [seconds(replayed(neighbours.replace(hosts=hosts), 1_000.0, both), 1_000)[1] for hosts in (1, 10_000)]
    assert found[0] == 5 + 225 % 99 and found[1] == 5


def test_a_month_of_16_000_hosts_is_the_same_each_time_and_has_less_goodput_than_8() -> None:
    month, host = 30 * 86_400.0, 264 * 86_400.0
    large, small = (Fleet(CASE.replace(between=host / hosts), hosts) for hosts in (16_000, 8))
    assert simulated(large, month) == simulated(large, month) != simulated(large, month, seed=2)
    assert simulated(large, month).goodput < spread(large, month, 20)[1] < simulated(small, month).goodput
    assert sum(seconds(simulated(large, month), 1)) == pytest.approx(1.0)


def test_a_job_that_never_starts_again_is_over_all_the_same() -> None:
    found = simulated(Fleet(CASE.replace(between=1.0, restart=1e7)), 100.0)
    assert found.goodput == 0.0 and found.restarting > 0.9
