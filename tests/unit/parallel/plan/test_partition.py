"""Partitions are the best there are, and satisfy what was asked."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from support.lazy import Lazy
from support.properties import given, st
from trainshed.parallel.ground.errors import PlanError

if TYPE_CHECKING:
    from trainshed.parallel.plan.costs import Costs
    from trainshed.parallel.plan.partition import Request

tables: Any = Lazy("trainshed.parallel.plan.costs")
plans: Any = Lazy("trainshed.parallel.plan.partition")

pytestmark = pytest.mark.torch


def partition(costs: Costs, request: Request) -> tuple[int, ...]:
    return plans.partition(costs, request)


def costs(
    seconds: list[float],
    *,
    saved: list[int] | None = None,
    parameters: list[tuple[str, ...]] | None = None,
    sizes: dict[str, int] | None = None,
    crossing: list[int] | None = None,
    no_cut: dict[int, str] | None = None,
) -> Costs:
    units = tuple(
        tables.UnitCost(
            f"u{i}", 0, s / 3, 2 * s / 3, (saved or [0] * len(seconds))[i], (parameters or [()] * len(seconds))[i]
        )
        for i, s in enumerate(seconds)
    )
    return tables.Costs(units, sizes or {}, tuple(crossing or [0] * (len(seconds) + 1)), no_cut or {})


def request(stages: int, **options: object) -> Request:
    link = options.pop("link", None) or tables.Link(0.0, 1e30)  # one that costs nothing
    return plans.Request(stages, tuple(range(stages, 0, -1)), link=link, **options)


def slowest(seconds: list[float], starts: tuple[int, ...]) -> float:
    ends = (*starts[1:], len(seconds))
    return max(sum(seconds[a:b]) for a, b in zip(starts, ends, strict=True))


@given(lambda: (st.lists(st.integers(1, 50), min_size=3, max_size=9), st.integers(1, 3)), max_examples=60)
def test_no_partition_has_a_faster_slowest_stage(seconds: list[int], stages: int) -> None:
    times = [float(value) for value in seconds]
    found = partition(costs(times), request(stages))
    every = [(0, *cuts) for cuts in itertools.combinations(range(1, len(times)), stages - 1)]
    assert slowest(times, found) == pytest.approx(min(slowest(times, one) for one in every))


def test_the_same_input_gives_the_same_partition() -> None:
    given_costs = costs([3.0, 1.0, 2.0, 2.0, 1.0, 3.0])
    assert partition(given_costs, request(3)) == partition(given_costs, request(3))


def test_among_equally_fast_partitions_the_one_with_less_traffic_is_taken() -> None:
    assert partition(costs([2.0, 0.0, 2.0], crossing=[0, 9, 1, 0]), request(2)) == (0, 2)
    assert partition(costs([2.0, 0.0, 2.0], crossing=[0, 1, 9, 0]), request(2)) == (0, 1)


def test_a_slow_link_moves_the_cut_to_where_little_crosses() -> None:
    wide = costs([2.0, 1.0, 1.0, 2.0], crossing=[0, 1, 1000, 1, 0])
    assert partition(wide, request(2, link=tables.Link(0.0, 100.0))) in ((0, 1), (0, 3))


def test_no_stage_starts_where_none_may() -> None:
    assert partition(costs([1.0, 1.0, 1.0, 1.0], no_cut={2: "a reason"}), request(2)) in ((0, 1), (0, 3))


def test_overrides_are_kept_and_impossible_ones_are_named() -> None:
    assert partition(costs([1.0, 1.0, 1.0, 9.0]), request(2, pins={"u1": 1})) == (0, 1)
    with pytest.raises(PlanError, match="'u2' on stage 0 runs after 'u1' on stage 1"):
        partition(costs([1.0] * 4), request(2, pins={"u1": 1, "u2": 0}))
    with pytest.raises(PlanError, match="'nothing' names a module that the forward does not call"):
        partition(costs([1.0] * 4), request(2, pins={"nothing": 0}))


def test_a_module_with_several_names_is_on_the_stage_of_who_calls_it_or_on_its_own() -> None:
    called = [("a", "a"), ("a.norm", "a.norm"), ("b", "b"), ("a.norm", "b.norm")]  # the same norm twice
    units = tuple(tables.UnitCost(name, 0, 1.0, 1.0, 0, (), path) for name, path in called)
    shared = tables.Costs(units, {}, (0,) * 5, {})
    assert partition(shared, request(2, pins={"a": 0, "b": 1})) == (0, 2)
    assert partition(shared, request(2, pins={"a.norm": 1})) == (0, 1)


@pytest.mark.parametrize(
    ("pins", "starts"),
    [
        ({"u1": 0, "u2": 1}, (0, 2)),  # what follows the last override goes on with it
        ({"u2": 0, "u3": 1}, (0, 3)),
        ({"u2": 1}, (0, 2)),
    ],
)
def test_modules_without_an_override_follow_their_neighbours(pins: dict[str, int], starts: tuple[int, ...]) -> None:
    assert partition(costs([1.0, 1.0, 1.0, 1.0, 9.0]), request(2, pins={"": 0, **pins})) == starts


def test_a_default_in_the_middle_draws_all_that_the_order_allows() -> None:
    pins = {"": 1, "u1": 0, "u5": 2}
    assert partition(costs([1.0] * 7), request(3, pins=pins)) == (0, 2, 5)
    assert partition(costs([1.0] * 5), request(2, pins={"": 1, "u0": 0})) == (0, 1)
    with pytest.raises(PlanError, match="'u2' on stage 0 runs after 'u1' on stage 1"):
        partition(costs([1.0] * 4), request(2, pins={"": 1, "u1": 1, "u2": 0}))
    with pytest.raises(PlanError, match="the model is put on stage 2, there are stages 0 to 1"):
        partition(costs([1.0] * 4), request(2, pins={"": 2, "u1": 1}))


def test_a_model_with_too_few_parts_is_an_error_that_says_so() -> None:
    with pytest.raises(PlanError, match="has 2 parts that can be a stage, but 3 stages are requested"):
        partition(costs([1.0, 1.0]), request(3))


def test_the_memory_limit_depends_on_the_stage() -> None:
    # The first of two stages keeps two microbatches: 2 x 30 is over the limit, 2 x 20 is not.
    heavy = costs([1.0, 1.0, 1.0, 1.0], saved=[10, 10, 10, 10])
    assert partition(heavy, request(2, memory_limit=45)) == (0, 2)
    assert partition(heavy, request(2, memory_limit=35)) == (0, 1)
    with pytest.raises(PlanError, match="keeps every stage below"):
        partition(heavy, request(2, memory_limit=15))


def test_memory_can_be_balanced_instead_of_time() -> None:
    uneven = costs([1.0, 1.0, 1.0, 3.0], saved=[0, 0, 0, 0], parameters=[("a",), ("b",), ("c",), ("d",)],
                   sizes={"a": 30, "b": 10, "c": 10, "d": 10})  # fmt: skip
    assert partition(uneven, request(2)) == (0, 3)
    assert partition(uneven, request(2, memory_weight=1.0)) == (0, 1)


@given(lambda: st.lists(st.sets(st.sampled_from("abcd")), min_size=1, max_size=7), max_examples=40)
def test_a_parameter_that_several_calls_read_is_counted_once_a_stage(reads: list[set[str]]) -> None:
    sizes = {"a": 1, "b": 10, "c": 100, "d": 1000}
    read = costs([1.0] * len(reads), parameters=[tuple(sorted(r)) for r in reads], sizes=sizes)
    stages = tables.StageCosts(read, tables.Link(0.0, 1e30))
    for first, last in itertools.combinations(range(len(reads) + 1), 2):
        used = set().union(*reads[first:last])
        assert float(stages.parameters[first, last]) == sum(sizes[name] for name in used)
