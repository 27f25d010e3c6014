"""Every sample of an epoch once, over ranks, batches, workers and restarts with other numbers of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from support.properties import given, st
from trainshed.data.order import Block, Order, Runs, blocks_of
from trainshed.data.sharding import Deal, Share, left_of, seed_of

pytestmark = pytest.mark.exact


def small() -> Any:
    """The strategy of a small number."""
    return st.integers(1, 5)


def taken(deals: list[Deal], total: int, seed: str) -> list[list[int]]:
    """Positions of the batches that all ranks have had in these deals."""
    found, left = [], Runs([(0, total)])
    for number, deal in enumerate(deals):
        for rank in range(deal.world):
            share = Share(deal, left, rank, seed_of(seed, number))
            order = list(share.order())
            assert sorted(order) == list(range(share.batches))
            found += [share.positions(batch) for batch in order[: deal.taken]]
        left = left_of(total, deals[: number + 1], seed)
        if not len(left):
            break
    return found


@given(
    lambda: (
        st.integers(1, 200),
        st.lists(st.tuples(small(), small(), small(), small(), st.integers(0, 12)), max_size=4),
        small(),
        st.booleans(),
    ),
)
def test_every_sample_comes_once_however_often_the_ranks_change(
    total: int, before: list[tuple[int, ...]], world: int, shuffled: bool
) -> None:
    seed = "7 3" if shuffled else ""
    deals = [Deal(*numbers) for numbers in before]
    seen = Counter(position for batch in taken(deals, total, seed) for position in batch)
    left = left_of(total, deals, seed)
    rest = left.positions(0, len(left))
    assert set(seen) | set(rest) == set(range(total)) and set(seen).isdisjoint(rest)
    # Where fewer samples than ranks are left, or with batches of one, a sample can come to two ranks: so that none waits.
    assert sum(seen.values()) - len(seen) <= sum(deal.world - 1 for deal in deals)

    if rest:
        last = Deal(world, 3, 2, 2, 1000)
        now = Counter(position for batch in taken([*deals, last], total, seed) for position in batch)
        assert set(now) == set(range(total)) and not len(left_of(total, [*deals, last], seed))


@given(lambda: (st.integers(1, 300), small(), st.integers(1, 9), small(), small()))
def test_all_ranks_have_equally_many_batches_of_at_least_one_sample(
    total: int, world: int, batch: int, window: int, lanes: int
) -> None:
    deal, left = Deal(world, batch, window, lanes), Runs([(0, total)])
    shares = [Share(deal, left, rank, "s") for rank in range(world)]

    assert len({share.batches for share in shares}) == 1
    sizes = [len(share.positions(number)) for share in shares for number in range(share.batches)]
    assert min(sizes) >= 1 and max(sizes) <= batch
    assert sum(sizes) == total or (batch == 1 and total < sum(sizes) < total + world) or total < world


def test_what_is_not_shuffled_comes_in_the_order_of_the_files() -> None:
    share = Share(Deal(1, 4, 1, 3), Runs([(0, 10)]), 0, "")

    assert list(share.order()) == [0, 1, 2]
    assert [share.positions(batch) for batch in share.order()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_window_is_shuffled_and_read_by_one_worker() -> None:
    share = Share(Deal(1, 2, 4, 2), Runs([(0, 20)]), 0, "seed")
    order = list(share.order())

    assert order == [0, 4, 1, 5, 2, 6, 3, 7, 8, 9]  # two workers take turns, each with its window
    together = [position for batch in (0, 1, 2, 3) for position in share.positions(batch)]
    assert sorted(together) == list(range(8)) and together != list(range(8))


def test_another_epoch_has_another_order() -> None:
    blocks = blocks_of([100, 30], 10)
    orders = [Order(blocks, f"0 {epoch}") for epoch in range(2)]
    every = [order.places(range(130)) for order in orders]

    assert every[0] != every[1] and sorted(every[0]) == sorted(every[1])
    assert sorted(every[0]) == [(0, record) for record in range(100)] + [(1, record) for record in range(30)]


@given(
    lambda: (st.lists(st.integers(0, 12), min_size=1, max_size=5), st.lists(st.integers(0, 59), max_size=20), st.booleans())
)
def test_runs_of_records_are_the_places_of_positions(counts: list[int], positions: list[int], shuffled: bool) -> None:
    order = Order(blocks_of(counts, 4), "seed" if shuffled else "")
    ascending = sorted(position for position in positions if position < len(order))

    runs = order.runs(ascending)
    assert [(file, record) for file, first, count in runs for record in range(first, first + count)] == order.places(
        ascending
    )


def test_a_file_that_cannot_be_entered_stays_in_one_block() -> None:
    assert blocks_of([5, 3, 0], 2, frozenset({1})) == [Block(0, 0, 2), Block(0, 2, 2), Block(0, 4, 1), Block(1, 0, 3)]


def test_runs_are_merged_and_counted() -> None:
    runs = Runs([(7, 9), (0, 3), (2, 4), (9, 9), (8, 9)])

    assert runs.runs == [(0, 4), (7, 9)] and len(runs) == 6
    assert runs.part(2, 6) == [(2, 4), (7, 9)] and runs.positions(3, 5) == [3, 7]
