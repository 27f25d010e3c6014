"""When steps are looked at closely again: times are given, nothing waits."""

from __future__ import annotations

from itertools import pairwise

from trainshed.parallel.data.drift import FEWEST, Steadiness

STEADY = [0.5] * FEWEST
SLOW = [0.8] * FEWEST
FAST = [0.3] * FEWEST


def begun(reference: float = 0.5, now: float = 0.0) -> Steadiness:
    made = Steadiness()
    made.begin(reference, now)
    return made


def test_steps_that_are_slower_in_two_looks_running_are_looked_at_closely() -> None:
    steady = begun()

    assert [steady.changed(SLOW, 100.0), steady.changed(SLOW, 110.0)] == ["", "slower"]


def test_steps_that_are_faster_are_noticed_too() -> None:
    steady = begun()

    assert [steady.changed(FAST, 100.0), steady.changed(FAST, 110.0)] == ["", "faster"]


def test_a_single_look_or_one_that_says_otherwise_is_not_enough() -> None:
    steady = begun()

    assert [steady.changed(periods, 100.0) for periods in (SLOW, FAST, SLOW, STEADY, SLOW)] == [""] * 5


def test_a_few_long_steps_do_not_count() -> None:
    steady = begun()
    some = STEADY[: FEWEST // 2 + 1] + [60.0] * (FEWEST // 2 - 1)  # checkpoints, evaluations

    assert not steady.changed(some, 100.0) and not steady.changed(some, 110.0)
    assert not steady.changed(SLOW[:-1], 120.0) and not steady.changed(SLOW[:-1], 130.0), "too few steps"


def test_closer_looks_become_rarer_until_all_was_quiet_for_long() -> None:
    steady, now, taken = Steadiness(), 0.0, []
    steady.begin(0.5, now)
    for _ in range(100):  # a network that is always something else
        now += 10.0
        periods = [2 * steady.reference] * FEWEST
        if steady.changed(periods, now):
            taken.append(now)
            steady.begin(periods[0], now)
    pauses = [later - earlier for earlier, later in pairwise(taken)]

    assert pauses == sorted(pauses) and pauses[-1] > 4 * pauses[0], taken
    later = now + 100_000.0
    steady.begin(0.5, later)
    assert [steady.changed(SLOW, later + 25.0), steady.changed(SLOW, later + 35.0)] == ["", "slower"]


def test_looks_are_some_seconds_apart_however_long_steps_take() -> None:
    assert begun(0.001).steps_to_look() == 10_000
    assert begun(60.0).steps_to_look() == FEWEST + 1
    assert not Steadiness().changed(SLOW, 0.0), "nothing was achieved so far"
