"""How often to save."""

from __future__ import annotations

import math

import pytest

from trainshed.checkpoint.policy import PRIOR_SECONDS, History, Policy, daly, young
from trainshed.contract.wire.checkpoint_every import LONGEST, SHORTEST, Every, read_every


def test_youngs_interval_is_the_cheapest() -> None:
    cost, mean = 0.15, 7200.0

    def lost(interval: float) -> float:
        return cost / interval + interval / (2 * mean)

    best = young(cost, mean)
    assert best == pytest.approx(46.5, abs=0.1)
    assert lost(best) < min(lost(best * 0.9), lost(best * 1.1))


def policy(now: float = 0.0, history: History | None = None) -> Policy:
    return Policy(None, None, now, history or History())


def test_the_first_checkpoint_comes_soon_since_it_tells_the_cost() -> None:
    one = policy()
    assert not one.due(SHORTEST - 0.1)
    assert one.due(SHORTEST)


def test_a_dearer_checkpoint_comes_less_often() -> None:
    intervals = []
    for stall in (0.01, 0.1, 1.0, 10.0):
        one = policy()
        one.saved(0.0, stall)
        intervals.append(one.interval(0.0))
    assert intervals == sorted(intervals)
    assert intervals[1] == pytest.approx(math.sqrt(2 * 0.1 * PRIOR_SECONDS) - 0.1)


def test_slower_steps_while_writing_are_part_of_the_cost() -> None:
    one = policy()
    for _ in range(30):
        one.stepped(0.1, writing=False)
    one.saved(0.0, 0.05)
    for _ in range(10):
        one.stepped(0.2, writing=True)
    assert one.cost == pytest.approx(0.05 + 10 * 0.1)


def test_more_interruptions_bring_more_checkpoints() -> None:
    calm, rough = (
        policy(history=History(trained=36_000.0, interruptions=1)),
        policy(history=History(trained=36_000.0, interruptions=40)),
    )
    for one in (calm, rough):
        one.saved(0.0, 0.5)
    assert rough.interval(0.0) < calm.interval(0.0) / 2


def test_the_disk_is_never_kept_busy_more_than_half_of_the_time() -> None:
    one = policy()
    one.saved(0.0, 0.001)
    one.written(60.0)
    assert one.interval(0.0) == 120.0


def test_there_is_a_longest_interval() -> None:
    one = policy()
    one.saved(0.0, 1e6)
    assert one.interval(0.0) == LONGEST


def test_steps_alone_leave_the_clock_out() -> None:
    one = Policy(10, None, 0.0, History())
    assert not one.due(1e9)
    assert [step for step in range(1, 31) if one.step_due(step)] == [10, 20, 30]


def test_the_history_is_handed_on() -> None:
    one = policy(now=100.0, history=History(trained=50.0, interruptions=2))
    assert History.of(one.so_far(130.0).plain()) == History(trained=80.0, interruptions=2)


@pytest.mark.parametrize(("steps", "seconds"), [(0, None), (-1, None), (None, 0.0), (None, float("nan"))])
def test_intervals_that_make_no_sense_are_refused(steps: int | None, seconds: float | None) -> None:
    with pytest.raises(ValueError, match="must be"):
        Policy(steps, seconds, 0.0, History())


def test_what_starting_again_costs_makes_checkpoints_rarer() -> None:
    assert daly(2.0, 1000.0, 0.0) == pytest.approx(young(2.0, 1000.0) - 2.0)
    assert daly(2.0, 1000.0, 500.0) == pytest.approx(math.sqrt(2 * 2 * 1500) - 2)
    assert daly(100.0, 1.0, 0.0) == 100.0, "never more often than they can be made"


def test_a_job_that_asks_for_it_wins_over_the_script_within_its_bounds() -> None:
    asked = Policy(10, 1e6, 0.0, History(), read_every("auto,least=1m,most=2m,between=8h"))
    asked.saved(0.0, 0.05)
    assert not asked.step_due(10) and asked.interval(0.0) == 60.0
    assert asked.between(0.0) == 8 * 3600
    asked.saved(0.0, 50.0)
    assert asked.interval(0.0) == 120.0


def test_what_was_chosen_is_said_with_its_reasons_and_again_when_it_is_another() -> None:
    one = Policy(None, None, 0.0, History(trained=3600.0, interruptions=2), read_every("auto"))
    one.restart = 12.0
    one.saved(0.0, 0.5)
    assert one.choice(0.0) == (
        "a checkpoint every 1 min 00 s: one costs 0.5 s, starting again takes 12 s, "
        "1 h 00 min lie between interruptions (2 so far, one in 2 h assumed before)"
    )
    assert one.choice(0.0) == ""
    one.saved(0.0, 5.0)
    assert one.choice(0.0).startswith("a checkpoint every 3 min ")
    plain = policy()
    plain.saved(0.0, 0.5)
    assert plain.choice(0.0) == ""


@pytest.mark.parametrize("text", ["5m", "auto,", "auto,least=0", "auto,least=2m,most=1m", "auto,between=0", "auto,often=1s"])
def test_an_interval_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        read_every(text)


def test_an_interval_that_nobody_asks_for_has_the_usual_bounds() -> None:
    assert read_every("") == Every() and not Every().asked
    assert read_every("auto,least=1.5m,between=1d") == Every(True, 90.0, LONGEST, 86400.0)
