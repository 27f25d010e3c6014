"""Ways to use ranks: which are looked at, which cannot be, and what links they have."""

from __future__ import annotations

from typing import Any

import pytest

from support.lazy import Lazy
from trainshed.contract.wire.pipeline import read_settings

tables: Any = Lazy("trainshed.parallel.plan.costs")
ways: Any = Lazy("trainshed.parallel.plan.candidates")
wishes: Any = Lazy("trainshed.parallel.plan.plan_request")
links: Any = Lazy("trainshed.parallel.plan.host_links")

pytestmark = pytest.mark.torch


def of(ranks: int, microbatches: int = 8, *, schedule: str = "1f1b", virtual: int = 1, **terms: Any) -> dict[Any, Any]:
    wish = wishes.Wish(ranks=ranks, microbatches=microbatches, schedule=schedule, virtual=virtual)
    return {(one.stages, one.tensor, one.replicas): one for one in ways.ways_for(ranks, wish, ways.Terms(**terms))}


def test_all_factors_of_the_ranks_are_looked_at_each_once_and_most_stages_come_first() -> None:
    found = of(8)
    assert list(found) == [
        (8, 1, 1), (4, 1, 2), (4, 2, 1), (2, 1, 4), (2, 2, 2), (2, 4, 1), (1, 1, 8), (1, 2, 4), (1, 4, 2), (1, 8, 1),
    ]  # fmt: skip
    assert not any(one.problem for one in found.values())
    assert list(of(7)) == [(7, 1, 1), (1, 1, 7), (1, 7, 1)]
    assert list(of(1)) == [(1, 1, 1)]


def test_results_are_thought_to_stay_in_parts_in_tensor_groups_without_stages() -> None:
    found = of(8)
    assert [way for way, one in found.items() if one.wish.pairs] == [(1, 2, 4), (1, 4, 2), (1, 8, 1)]


def test_settings_are_those_that_init_takes_and_microbatches_are_shared_out() -> None:
    found = of(8)
    assert found[2, 2, 2].settings() == {
        "pipeline_parallel_degree": 2, "tensor_parallel_degree": 2, "prescaled_batch": True, "microbatches": 4,
    }  # fmt: skip
    for one in found.values():
        assert read_settings(one.settings()).microbatches * one.replicas == 8
    interleaved = of(8, schedule="interleavedzerobubble", virtual=2)
    assert read_settings(interleaved[4, 1, 2].settings()).virtual_stages == 2
    assert "pipeline" not in interleaved[1, 1, 8].settings()  # a rank by itself has nobody to interleave with
    assert interleaved[1, 1, 8].wish.virtual == 1


def test_what_is_not_possible_says_why() -> None:
    found = of(8, 6)
    assert found[2, 1, 4].problem == "6 microbatches do not divide among 4 replicas"
    assert not found[4, 1, 2].problem
    hosts = links.Hosts(ranks=2)
    across = {key: one.problem for key, one in of(8, hosts=hosts).items() if one.problem}
    assert across == dict.fromkeys(
        [(2, 4, 1), (1, 4, 2), (1, 8, 1)], "a tensor group would span hosts, which have 2 ranks each"
    )
    uneven = of(12, 12, hosts=links.Hosts(ranks=6))
    assert uneven[3, 4, 1].problem.startswith("a tensor group would span hosts")  # ranks 4 to 7 are on two hosts
    assert not uneven[4, 3, 1].problem


def test_each_group_of_ranks_talks_by_the_slowest_link_that_it_has() -> None:
    inside, between = tables.Link(1e-5, 1e10), tables.Link(1e-4, 1e8)
    found = of(8, hosts=links.Hosts(4, inside, between))
    # Tensor groups have neighbouring ranks, then pipelines: 2 stages of 2 are one host, 4 stages of 2 are two.
    assert found[2, 2, 2].wish.tensor_link == inside and found[2, 2, 2].wish.link == inside
    assert found[2, 2, 2].replica_link == between and found[4, 2, 1].wish.link == between
    assert found[1, 4, 2].wish.tensor_link == inside and found[1, 4, 2].group_link == between
    assert found[4, 1, 2].wish.link == inside
    alone = of(8, hosts=links.Hosts(0, inside, between))
    assert alone[2, 2, 2].wish.tensor_link == between and not alone[1, 8, 1].problem
