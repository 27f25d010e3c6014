"""Which buckets are chosen, and how long steps then take: pure sums."""

from __future__ import annotations

import pytest

from trainshed.parallel.data.bucket_plan import (
    MIB,
    SIZES,
    Batch,
    BucketPlan,
    Cost,
    Gradient,
    Timeline,
    best_plan,
    buckets,
    calibrated,
    cut,
    fitted,
    plan_seconds,
    step_seconds,
    what_next,
)
from trainshed.parallel.data.host_layout import layout_of

LINK = Cost(0.0, 1 / (100 * MIB), 0.0)  # 100 MiB/s
DEFAULT = (MIB, 25 * MIB)


def timeline(layers: int = 12, size: int = 2 * MIB, apart: float = 0.02, rest: float = 0.1) -> Timeline:
    return Timeline(tuple(Gradient(apart * number, size) for number in range(layers)), rest, 0.2)


def test_a_bucket_is_closed_when_it_has_reached_its_size() -> None:
    made = buckets([Gradient(float(number), 3) for number in range(6)], (2, 5))

    assert made == [Gradient(0.0, 3), Gradient(2.0, 6), Gradient(4.0, 6), Gradient(5.0, 3)]


def test_a_step_without_anything_to_exchange_is_its_computation() -> None:
    assert step_seconds(Timeline((), 0.5, 0.0), [], LINK) == 0.5


def test_an_exchange_overlaps_with_what_is_computed_meanwhile() -> None:
    steps = timeline()
    one = step_seconds(steps, buckets(steps.gradients, (24 * MIB,)), LINK)
    many = step_seconds(steps, buckets(steps.gradients, (2 * MIB,)), LINK)

    assert one == pytest.approx(0.1 + 11 * 0.02 + 0.24)
    assert many == pytest.approx(0.1 + 11 * 0.02 + 0.02)


def test_smaller_buckets_are_chosen_where_one_would_begin_late() -> None:
    plan = best_plan(timeline(), {"flat": LINK}, "flat", DEFAULT)

    assert plan.algorithm == "flat" and plan.bucket == 2 * MIB and plan.predicted > 1.3


def test_a_way_that_costs_half_is_chosen_and_direct_only_for_what_is_small() -> None:
    half = Cost(0.001, LINK.per_byte / 2, 0.001)
    quick = Cost(0.0001, LINK.per_byte, 0.0001)
    plan = best_plan(timeline(size=4 * MIB), {"flat": LINK, "hierarchical": half, "direct": quick}, "flat", DEFAULT)

    assert plan.algorithm == "hierarchical" and plan.small


def test_messages_on_their_way_together_have_most_of_their_latency_in_common() -> None:
    steps = timeline()
    made = buckets(steps.gradients, (2 * MIB,))
    alone = step_seconds(steps, made, Cost(0.03, LINK.per_byte, 0.03))
    together = step_seconds(steps, made, Cost(0.03, LINK.per_byte, 0.0))

    assert alone == pytest.approx(0.1 + 12 * 0.05)
    assert together == pytest.approx(0.1 + 11 * 0.02 + 0.02 + 0.03)


def test_a_huge_gradient_is_cut_into_messages_that_each_cost_something() -> None:
    huge = [Gradient(0.5, 100 * MIB)]

    assert cut(huge, 2 * MIB) == [Gradient(0.5, 2 * MIB)] * 50 and cut(huge, 128 * MIB) == huge
    steps = Timeline(tuple(huge), 0.1, 0.0)
    costs = {"flat": Cost(0.0, 1.0, 0.0), "hierarchical": Cost(0.05, LINK.per_byte, 0.05)}
    assert best_plan(steps, costs, "flat", DEFAULT).bucket == max(SIZES), "small pieces would pay for their number"


def test_messages_that_cost_much_each_make_large_buckets() -> None:
    plan = best_plan(timeline(size=MIB // 8, apart=0.001), {"flat": Cost(0.05, LINK.per_byte, 0.05)}, "flat", DEFAULT)

    assert plan.bucket == max(SIZES)


def seconds_of(cost: Cost, count: int, size: int) -> Batch:
    steps = Timeline((Gradient(0.0, count * size),), 0.0, 0.0)
    return Batch(count, size, step_seconds(steps, [Gradient(0.0, size)] * count, cost))


@pytest.mark.parametrize("cost", [Cost(0.004, 1e-8, 0.002, 0.003), Cost(0.003, 1e-8, 0.0, 0.003)])
def test_a_cost_is_what_messages_were_measured_to_take(cost: Cost) -> None:
    one, small = (seconds_of(cost, count, 4 << 10) for count in (1, 8))
    many, few = seconds_of(cost, 24, MIB // 2), seconds_of(cost, 6, 2 * MIB)
    found = fitted(one, small, many, few)

    for name in ("latency", "per_byte", "each", "least"):
        assert getattr(found, name) == pytest.approx(getattr(cost, name), rel=1e-2, abs=2e-5), name


def of(milliseconds: tuple[float, float, float, float]) -> Cost:
    one, small, many, few = milliseconds
    return fitted(
        Batch(1, 4 << 10, one / 1e3),
        Batch(8, 4 << 10, small / 1e3),
        Batch(24, MIB // 2, many / 1e3),
        Batch(6, 2 * MIB, few / 1e3),
    )


# What four hosts of one rank were measured to take, DDP's own way, on links of 500 Mbit/s and without a limit.
SLOW, FAST = of((3.9, 22.4, 315.6, 313.7)), of((3.9, 23.1, 81.1, 46.4))


def test_a_slow_link_hides_what_more_messages_cost_so_that_they_may_begin_earlier() -> None:
    steps = timeline(apart=0.01625)

    assert SLOW.each < 0.0002 < 0.001 < FAST.each
    assert best_plan(steps, {"flat": SLOW}, "flat", DEFAULT).bucket == 2 * MIB
    small = timeline(layers=96, size=MIB // 4, apart=0.0005)
    assert best_plan(small, {"flat": FAST}, "flat", DEFAULT).bucket >= 2 * MIB, "here they cost"


def test_a_far_link_lets_few_messages_pass_at_a_time() -> None:
    far = fitted(Batch(1, 4 << 10, 0.3), Batch(8, 4 << 10, 1.2), Batch(2, MIB // 2, 0.35), None)

    assert far.among_others(MIB // 4) == pytest.approx(0.9 / 7) and far.seconds(MIB) == pytest.approx(0.35, rel=1e-2)


def test_what_was_measured_in_a_moment_is_scaled_to_what_steps_were_seen_to_wait() -> None:
    gradients = timeline().gradients
    exchange = step_seconds(Timeline(gradients, 0.0, 0.0), buckets(gradients, DEFAULT), LINK) - gradients[-1].ready
    seen = Timeline(gradients, 0.1, exchange)
    thrice = {"flat": Cost(0.0, LINK.per_byte / 3, 0.0), "hierarchical": Cost(0.001, LINK.per_byte / 6, 0.0005)}
    costs = calibrated(seen, thrice, "flat", DEFAULT)

    assert costs["flat"].per_byte == pytest.approx(LINK.per_byte, rel=1e-3)
    assert costs["hierarchical"].per_byte == pytest.approx(LINK.per_byte / 2, rel=1e-3)
    assert costs["hierarchical"].latency == 0.001


def test_nothing_is_promised_where_nothing_can_be_gained() -> None:
    steps = timeline(apart=5.0)
    plan = best_plan(steps, {"flat": LINK, "hierarchical": LINK}, "flat", (2 * MIB,))

    assert plan.predicted == pytest.approx(1.0, abs=0.01)
    assert best_plan(Timeline((), 0.0, 0.0), {"flat": LINK}, "flat", DEFAULT).predicted == 1.0


HALF = Cost(0.0, LINK.per_byte / 2, 0.0)
WAYS = {"flat": LINK, "bf16": HALF, "direct": LINK}
QUICK = {name: Cost(cost.latency, cost.per_byte / 1000, cost.each) for name, cost in WAYS.items()}


def test_ddp_keeps_its_gradients_where_nothing_gains_unless_they_are_always_to_go_by_a_plan() -> None:
    steps = timeline()

    assert what_next(steps, QUICK, "flat", DEFAULT) is None
    assert isinstance(what_next(steps, QUICK, "flat", DEFAULT, always=True), BucketPlan)
    found = what_next(steps, WAYS, "flat", DEFAULT)
    assert found is not None and found.algorithm == "bf16"


def test_a_plan_that_is_still_best_is_kept_and_another_taken_when_the_network_has_changed() -> None:
    steps = timeline()
    best = what_next(steps, WAYS, "flat", DEFAULT)
    slow = BucketPlan("flat", False, 25 * MIB, 1.0)

    assert what_next(steps, WAYS, "flat", DEFAULT, best) is best
    other = what_next(steps, WAYS, "flat", DEFAULT, slow)
    assert other is not None and other.algorithm == "bf16" and other.predicted > 1.3


def test_ddp_gets_its_gradients_back_where_a_plan_that_gained_has_become_slower_than_it() -> None:
    steps = timeline()
    laborious = QUICK | {"bf16": Cost(0.05, HALF.per_byte, 0.05)}  # its messages cost, on a link that costs nothing now
    plan = BucketPlan("bf16", False, MIB, 1.5)

    assert what_next(steps, laborious, "flat", DEFAULT, plan) is None
    kept = what_next(steps, laborious, "flat", DEFAULT, plan, always=True)
    assert kept is not None and kept.algorithm == "flat"


def test_what_is_measured_under_a_plan_is_scaled_to_the_steps_of_that_plan() -> None:
    plan = BucketPlan("bf16", False, 2 * MIB, 1.5)
    seen = Timeline(timeline().gradients, 0.1, 0.5)
    costs = calibrated(seen, WAYS, "flat", DEFAULT, plan)

    assert plan_seconds(seen, costs, "flat", DEFAULT, plan) == pytest.approx(seen.step, rel=1e-3)
    assert costs["flat"].per_byte == pytest.approx(2 * costs["bf16"].per_byte)


def test_a_layout_knows_who_shares_a_host() -> None:
    layout = layout_of(["b", "a", "b", "a"])

    assert layout.hosts == ((0, 2), (1, 3)) and layout.even and layout.shared and layout.world == 4
    assert layout.neighbours(2) == (0, 2) and layout.across(2) == (2, 3) and layout.text() == "2 hosts of 2 ranks"
    uneven = layout_of([0, 0, 0, 1])
    assert not uneven.even and uneven.text() == "2 hosts of 1 to 3 ranks"
    assert not layout_of([3, 1]).shared and layout_of([0]).text() == "1 host of 1 rank"
