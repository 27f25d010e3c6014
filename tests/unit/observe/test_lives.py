"""From measured steps to the accounts: what was done again, waited for, lost in a kill."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from trainshed.observe.ledger import Span
from trainshed.observe.lives import Life, position_at, slow_waits, spans_of, with_tail
from trainshed.observe.steps import Window


def windows(begin: float, count: int, at: int | None = None, steps: int = 10, **phases: float) -> tuple[Window, ...]:
    """Windows of a second each; at: the number of the step before the first one."""
    return tuple(
        Window(
            time=begin + number + 1, step=0, steps=steps, seconds=1.0, longest=0.1, phases=phases,
            at=None if at is None else at + steps * (number + 1),
        )
        for number in range(count)
    )  # fmt: skip


def sums(spans: Iterable[Span]) -> dict[str, float]:
    found: dict[str, float] = {}
    for span in spans:
        found[span.account] = found.get(span.account, 0.0) + span.end - span.begin
    return {name: round(seconds, 6) for name, seconds in found.items()}


def test_steps_that_were_made_after_the_restored_one_are_done_again() -> None:
    first = Life(windows(0, 10, at=0), resumed=0)
    second = Life(windows(20, 10, at=75), resumed=75)

    assert sums(spans_of([first, second])) == {"steps": 17.5, "again": 2.5}


def test_without_numbers_the_time_of_the_checkpoint_tells_what_was_lost() -> None:
    lives = [Life(windows(0, 10)), Life(windows(20, 10), saved=6.5)]

    assert sums(spans_of(lives)) == {"steps": 16.5, "again": 3.5}


@pytest.mark.parametrize(("saved", "again"), [(0.0, 10.0), (10.0, 0.0), (None, 0.0)])
def test_without_any_checkpoint_all_is_done_again(saved: float | None, again: float) -> None:
    found = sums(spans_of([Life(windows(0, 10)), Life(windows(20, 10), saved=saved)]))

    assert found.get("again", 0.0) == again


def test_steps_that_are_lost_twice_are_done_again_twice() -> None:
    lives = [Life(windows(0, 10)), Life(windows(20, 6), saved=5.0), Life(windows(40, 10), saved=5.0)]

    assert sums(spans_of(lives)) == {"steps": 10 + 1 + 4, "again": 5 + 6}


def test_a_window_is_divided_by_its_phases() -> None:
    found = sums(spans_of([Life(windows(0, 4, checkpoint=0.2, data=0.1, communication=0.3, backward=0.4))]))

    assert found == {"checkpoint": 0.8, "data": 0.4, "steps": 2.8}


def test_what_comes_before_the_first_step_has_names() -> None:
    life = Life(windows(30, 1), began=10.0, imported=5.0, ready=20.0, first=30.0)

    assert sums(spans_of([life])) == {"importing": 5, "loading": 5, "compiling": 9.9, "steps": 1.1}


def test_a_killed_process_is_taken_to_have_gone_on_for_a_window_at_most() -> None:
    life = Life(windows(0, 3, at=0))

    assert with_tail(life, 3.5).windows[-1].at == 35 and with_tail(life, 3.5).end == 3.5
    assert with_tail(life, 60.0).end == 4.0
    assert with_tail(life, 3.01) == life
    told = life.replace(windows=(*life.windows, life.windows[0].replace(time=3.4, seconds=0.4, steps=4)))
    assert with_tail(told, 3.9) == told


def test_a_moment_between_two_windows_lies_in_proportion() -> None:
    history = [(0.0, 0.0), (10.0, 100.0), (20.0, 40.0), (30.0, 140.0)]

    assert [position_at(history, moment) for moment in (-1, 5, 10, 15, 25, 99)] == [0, 50, 100, 100, 90, 140]


def test_what_ranks_wait_beyond_the_one_that_waits_least_is_for_a_slow_rank() -> None:
    quick, slow = windows(0, 20, communication=0.5), windows(0, 20, communication=0.1)
    ranks = {0: [Life(quick)], 1: [Life(slow)], 2: [Life(quick)]}
    waits = slow_waits(ranks)

    assert sum(waits[0]) == pytest.approx(8) == sum(waits[2]) and sum(waits[1]) == pytest.approx(0)
    assert sums(spans_of(ranks[0], waits[0])) == {"slow_rank": 8.0, "steps": 12.0}


def test_ranks_that_take_turns_in_being_slow_are_each_waited_for() -> None:
    early, late = windows(0, 10, communication=0.0), windows(0, 10, communication=0.4)
    swapped = windows(10, 10, communication=0.4), windows(10, 10, communication=0.0)
    waits = slow_waits({0: [Life((*early, *swapped[0]))], 1: [Life((*late, *swapped[1]))]})

    assert sum(waits[0]) == pytest.approx(4) == sum(waits[1])


def test_stages_of_a_pipeline_wait_by_design() -> None:
    ranks = {0: [Life(windows(0, 9, communication=0.5), apart=True)], 1: [Life(windows(0, 9), apart=True)]}

    assert slow_waits(ranks) == {}
