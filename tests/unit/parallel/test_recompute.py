"""Which modules run again in their backward, or keep on the CPU what it needs: the cheapest set that frees enough, and none
without need."""

from __future__ import annotations

import random
from itertools import chain, combinations

import pytest

from support.lazy import Lazy

plans = Lazy("trainshed.parallel.plan.plan_file")
recompute = Lazy("trainshed.parallel.stages.recompute")
pytestmark = pytest.mark.torch
MIB = 2**20


def unit(name: str, freed: float, seconds: float, kept: float = 0.0) -> recompute.Unit:
    return recompute.Unit(name, freed + kept, freed, freed, seconds, freed + kept)


def again(one: recompute.Unit) -> list[recompute.ActivationSaving]:
    return [recompute.ActivationSaving(one.name, True, one.freed, one.once, one.seconds)]


def test_the_set_is_the_cheapest_of_all() -> None:
    draw = random.Random(5)
    for _ in range(40):
        units = [unit(str(n), draw.randint(1, 40) * 1000, draw.randint(1, 30)) for n in range(draw.randint(1, 9))]
        needed = draw.uniform(1, sum(one.freed for one in units))
        sets = chain.from_iterable(combinations(units, count) for count in range(len(units) + 1))
        best = min(sum(one.seconds for one in some) for some in sets if sum(one.freed for one in some) >= needed)
        found = {way.unit for way in recompute.cheapest([again(one) for one in units], needed)}
        assert sum(one.freed for one in units if one.name in found) >= needed
        # What is freed is rounded down to a thousandth of what is needed: a set that frees it exactly may be passed over.
        rounded = needed * (1 + len(units) / 1000)
        sets = chain.from_iterable(combinations(units, count) for count in range(len(units) + 1))
        near = [sum(one.seconds for one in some) for some in sets if sum(one.freed for one in some) >= rounded]
        assert best <= sum(one.seconds for one in units if one.name in found) <= min(near, default=float("inf"))


def test_nothing_runs_again_where_there_is_room() -> None:
    units = [unit("a", 100, 1.0, 10), unit("b", 100, 2.0, 10)]
    choice = recompute.chosen(units, frozenset("ab"), 220, 6.0, everything=False)
    assert choice.fit == recompute.ALL_KEPT and choice.needed == choice.without == 220
    assert "none of 2 modules" in choice.line()


def test_room_is_kept_for_the_module_that_runs_again() -> None:
    """Each frees 100, of which 100 are there again while it runs: one of them is not enough."""
    units = [unit("a", 100, 1.0, 10), unit("b", 100, 2.0, 10), unit("c", 100, 3.0, 10)]
    choice = recompute.chosen(units, frozenset("abc"), 300, 6.0, everything=False)
    assert choice.fit.again == {"a", "b"} and choice.needed == 230 <= 300
    assert choice.slower == 0.5 and "too much" not in choice.line()


def test_what_must_not_run_twice_is_left_and_it_says_where_that_is_too_much() -> None:
    units = [unit("a", 100, 1.0), unit("b", 100, 2.0)]
    choice = recompute.chosen(units, frozenset("b"), 50, 3.0, everything=False)
    assert choice.fit.again == {"b"} and "still too much" in choice.line()
    assert not recompute.chosen(units, frozenset(), 50, 3.0, everything=False).fit.again


def test_a_plan_tells_what_each_module_frees_on_a_rank() -> None:
    made = {"forward_ms": 1.0, "backward_ms": 2.0}
    plan = plans.Plan(
        "",
        {},
        (
            plans.PlanUnit("a", 0, 0, **made, saved_mib=8.0, least_mib=1.0),
            plans.PlanUnit("b", 0, 1, **made, saved_mib=4.0, least_mib=1.0),
            plans.PlanUnit("b", 1, 1, **made, saved_mib=4.0, least_mib=2.0),
            plans.PlanUnit("old", 0, 1, **made, saved_mib=4.0),
        ),
    )
    units, seconds = recompute.units_of(plan, {1: 2}, 3.0)
    assert units == [
        recompute.Unit("b", 48 * MIB, 30 * MIB, 9 * MIB, pytest.approx(0.002), 12 * MIB),
        recompute.Unit("old", 24 * MIB, 0.0, 0.0, pytest.approx(0.001), 12 * MIB),
    ]
    assert seconds == pytest.approx(0.009)


def host(rate: float, room: float = 1e9, smallest: float = 1.0) -> recompute.Host:
    return recompute.Host(rate, room, smallest)


def test_what_copies_faster_than_it_runs_again_goes_to_the_cpu() -> None:
    units = [unit("slow", 100, 5.0, 10), unit("quick", 100, 0.1, 10), unit("tiny", 1, 1.0)]
    both = recompute.chosen(
        units, frozenset(("slow", "quick", "tiny")), 130, 12.0, everything=False, host=host(110.0, smallest=50)
    )
    assert both.fit.again == {"quick"} and both.fit.away == {"slow"}, both
    assert both.needed <= 130 and both.slower == pytest.approx((0.1 + 1.0) / 12.0)
    assert "1 of 3 modules run again (" in both.line() and "1 keep what they need on the CPU: slow" in both.line()
    slow_copies = recompute.chosen(units[:2], frozenset(("slow", "quick")), 130, 12.0, everything=False, host=host(1.0))
    assert slow_copies.fit.again == {"slow", "quick"} and not slow_copies.fit.away


def test_a_copy_costs_what_the_computation_does_not_hide_and_the_way_back() -> None:
    units = [unit("a", 100, 2.0, 100), unit("b", 100, 2.0, 100)]
    hidden = recompute.chosen(units, frozenset(), 220, 8.0, everything=False, host=host(100.0))  # two seconds each way
    assert hidden.fit.away == {"a", "b"} and hidden.slower == pytest.approx(2 * 2.0 / 8.0)
    open_ = recompute.chosen(units, frozenset(), 220, 8.0, everything=False, host=host(50.0))
    assert open_.slower == pytest.approx(2 * (4.0 + 2.0) / 8.0)
    assert "2 of 2 modules keep what they need on the CPU (" in open_.line()


def test_the_cpu_keeps_no_more_than_it_has_room_for() -> None:
    units = [unit("a", 100, 2.0), unit("b", 100, 2.0), unit("c", 40, 2.0)]
    choice = recompute.chosen(units, frozenset(), 90, 8.0, everything=False, host=host(1e6, room=150))
    assert choice.fit.away and sum(one.saved for one in units if one.name in choice.fit.away) <= 150
    assert "still too much" in choice.line()


def test_modules_that_all_run_again_leave_the_cpu_to_the_others() -> None:
    units = [unit("a", 100, 2.0, 10), unit("b", 100, 2.0, 10)]
    enough = recompute.chosen(units, frozenset("a"), 300, 8.0, everything=True, host=host(1e6))
    assert enough.fit.again == {"a"} and not enough.fit.away
    short = recompute.chosen(units, frozenset("a"), 130, 8.0, everything=True, host=host(1e6))
    assert short.fit.again == {"a"} and short.fit.away == {"b"}
