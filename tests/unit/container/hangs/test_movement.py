"""What counts as movement between two looks, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from trainshed.container.hangs.activity import COLLECTIVE, WORK, Activity
from trainshed.container.hangs.hang_watch import HangWatch
from trainshed.container.hangs.movement import Reading
from trainshed.container.hangs.sample import Sample, anything_moved
from trainshed.container.hangs.stragglers import Where
from trainshed.container.roster.roster import Alone

BEFORE = Reading(at=0.0, pids=(1, 2), own_cpu=5.0, other_cpu=5.0, bytes=1000, spins=False)
LONG = 200.0  # seconds between two looks


def sample(kind: str, place: str = "a stack", **changes: Any) -> Sample:
    return Sample(Where(0, "algo-1", Activity(kind)), "", place, BEFORE.replace(**changes))


@pytest.mark.parametrize(
    ("kind", "spins", "change", "moves"),
    [
        (WORK, False, {}, False),
        (WORK, False, {"own_cpu": 6.5}, False),  # what idle threads use
        (WORK, False, {"own_cpu": 8.0}, True),  # one long call into native code
        (WORK, True, {"own_cpu": 205.0}, False),  # waits for a GPU, which spins
        (COLLECTIVE, False, {"own_cpu": 205.0}, False),  # waits for other ranks, which may spin
        (COLLECTIVE, False, {"other_cpu": 8.0}, True),  # its data-loader workers are busy
        (COLLECTIVE, True, {"bytes": 1 << 22}, True),  # a thread of its own saves a checkpoint
        (WORK, True, {"bytes": 1 << 19}, False),
        (COLLECTIVE, False, {"pids": (1, 3)}, True),  # it has started another process
    ],
)
def test_cpu_time_counts_where_it_means_work(kind: str, spins: bool, change: dict[str, Any], moves: bool) -> None:
    before = [sample(kind, spins=spins)]

    assert anything_moved(before, [sample(kind, spins=spins, **{"at": LONG, **change})]) is moves


def test_another_stack_is_movement_whatever_the_rest_says() -> None:
    assert anything_moved([sample(COLLECTIVE, "line 1")], [sample(COLLECTIVE, "line 2", at=LONG)])


def test_the_cpu_time_of_a_program_without_stacks_counts_even_where_it_may_spin() -> None:
    after = sample(WORK, "", spins=True, own_cpu=205.0, at=LONG)

    assert anything_moved([sample(WORK, "", spins=True)], [after])


def test_a_rank_that_has_ended_since_is_movement_and_one_that_had_ended_before_is_not() -> None:
    ended = Sample(Where(0, "algo-1", Activity("ended")), "", "")

    assert anything_moved([sample(WORK)], [ended])
    assert not anything_moved([ended], [ended])


class Silent:
    """A run that has printed nothing for long."""

    def silent(self) -> float:
        return 1000.0


def test_a_machine_that_slept_has_to_be_seen_standing_still_for_some_time() -> None:
    watch = HangWatch("algo-1", "", "", lambda _: None, Alone("algo-1"), seconds=8.0, stop=True)
    watch.run = Silent()  # type: ignore[assignment]
    found = []
    for at in range(1000, 1007):
        watch._seen([sample(COLLECTIVE, at=float(at))], float(at))
        found.append(watch.still)

    assert found == [False, False, False, True, True, True, True]


def test_what_moves_while_it_is_looked_at_stands_still_no_more() -> None:
    watch = HangWatch("algo-1", "", "", lambda _: None, Alone("algo-1"), seconds=8.0, stop=True)
    watch.run = Silent()  # type: ignore[assignment]
    for at in range(1000, 1005):
        watch._seen([sample(COLLECTIVE, at=float(at))], float(at))
    assert watch.still
    watch._seen([sample(COLLECTIVE, "elsewhere", at=1005.0)], 1005.0)

    assert not watch.still
