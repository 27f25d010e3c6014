"""Schedules whose stages go through the ranks and back: every order is whole, ends, and keeps what the papers say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from support.lazy import Lazy

simulate: Any = Lazy("trainshed.parallel.plan.simulate")
planner: Any = Lazy("trainshed.parallel.plan.planner")
work_of: Any = Lazy("trainshed.parallel.ground.schedule_work")

pytestmark = pytest.mark.torch
BOTH = ("zbvzerobubble", "dualpipev")
# Half stages whose activations the fullest rank keeps, over those of one microbatch on each of its stages.
MORE = {"zbvzerobubble": 0, "dualpipev": 1}


def needed(kind: str, stage: int, microbatch: int, last: int) -> list[tuple[tuple[str, ...], int, int]]:
    """What must have ended before a piece of work: one of these kinds, on that stage, for that microbatch."""
    if kind == "forward":
        return [(("forward",), stage - 1, microbatch)] if stage else []
    if kind == "weight":
        return [(("backward",), stage, microbatch)]
    own = [(("forward",), stage, microbatch)]
    return own if stage == last else [*own, (("backward", "whole"), stage + 1, microbatch)]


def problems(orders: list[list[Any]], ranks: int, microbatches: int) -> list[str]:
    """What is wrong with an order of work: a piece that is missing or there twice or on another rank, or one that waits for
    what comes later (a message that is not sent before, in every order in which ranks can do their work)."""
    wrong, last = [], 2 * ranks - 1
    for rank, mine in enumerate(orders):
        seen = Counter(mine)
        for stage in (rank, last - rank):
            for number in range(microbatches):
                times = [seen.pop((kind, stage, number), 0) for kind in ("forward", "backward", "weight", "whole")]
                if times not in ([1, 1, 1, 0], [1, 0, 0, 1]):
                    wrong.append(f"stage {stage}, microbatch {number}: {times}")
        wrong += [f"rank {rank} has {piece}" for piece in seen]
    ended: set[tuple[str, int, int]] = set()
    at = [0] * ranks
    moved = True
    while moved:
        moved = False
        for rank, mine in enumerate(orders):
            while at[rank] < len(mine):
                piece = mine[at[rank]]
                waits = needed(*piece, last)
                if not all(any((kind, *where) in ended for kind in kinds) for kinds, *where in waits):
                    break
                ended.add(tuple(piece))
                at[rank] += 1
                moved = True
    wrong += [f"rank {rank} waits at {mine[at[rank]]}" for rank, mine in enumerate(orders) if at[rank] < len(mine)]
    return wrong


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("schedule", BOTH)
def test_every_piece_is_there_once_and_nothing_waits_for_what_comes_later(schedule: str, ranks: int) -> None:
    for microbatches in range(1, 33):
        orders = simulate.order(schedule, ranks, 2, microbatches)
        assert not problems(orders, ranks, microbatches), microbatches
        kept = [simulate.most_kept(mine) for mine in orders]
        assert max(kept) <= min(2 * ranks + MORE[schedule], 2 * microbatches), microbatches
        wish = planner.Wish(ranks, 2, schedule, microbatches)
        assert [wish.seat(stage) for stage in range(2 * ranks)] == [*range(ranks), *reversed(range(ranks))]
        assert max(wish.in_flight()) <= min(2 * ranks, microbatches)


def test_the_check_finds_what_is_wrong() -> None:
    orders = simulate.order("zbvzerobubble", 2, 2, 4)
    assert not problems(orders, 2, 4)
    first, other = orders
    assert problems([first[:-1], other], 2, 4) == ["stage 0, microbatch 3: [1, 1, 0, 0]"]
    assert problems([[*first, first[-1]], other], 2, 4) == ["stage 0, microbatch 3: [1, 1, 2, 0]"]
    assert "rank 0 has Work(kind='forward', stage=1, microbatch=0)" in problems([[*first, other[0]], other], 2, 4)
    assert any("waits at" in one for one in problems([first, [other[-1], *other[:-1]]], 2, 4))


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("schedule", BOTH)
def test_ranks_wait_at_the_ends_of_a_step_alone(schedule: str, ranks: int) -> None:
    """Where the three parts take equally long: ranks - 1 halves of a forward, whatever the number of microbatches."""
    even = [0.5] * 2 * ranks
    for microbatches in (2 * ranks, 3 * ranks, 4 * ranks + 1):
        orders = simulate.order(schedule, ranks, 2, microbatches)
        seconds, busy = simulate.step_seconds(orders, even, even, [0.0] * 2 * ranks, even)
        assert busy == pytest.approx([3.0 * microbatches] * ranks)
        assert seconds - busy[0] == pytest.approx((ranks - 1) / 2)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 3), (2, 4), (3, 7), (4, 2), (4, 8), (5, 13)])
@pytest.mark.parametrize("schedule", BOTH)
def test_it_is_the_published_order(schedule: str, ranks: int, microbatches: int) -> None:
    """As torch has it, which takes no fewer microbatches than stages for the second."""
    from torch.distributed.pipelining import ScheduleDualPipeV, ScheduleZBVZeroBubble

    microbatches = max(microbatches, 2 * ranks if schedule == "dualpipev" else 1)
    real: Any = object.__new__(ScheduleZBVZeroBubble if schedule == "zbvzerobubble" else ScheduleDualPipeV)
    real.pp_group_size, real.num_stages, real._n_microbatches = ranks, 2 * ranks, microbatches
    kinds = {"FORWARD": "forward", "BACKWARD_INPUT": "backward", "BACKWARD_WEIGHT": "weight", "FULL_BACKWARD": "whole"}
    for rank, mine in enumerate(simulate.order(schedule, ranks, 2, microbatches)):
        actions = [one for one in real._calculate_single_rank_operations(rank) if one is not None]
        flat = [part for one in actions for part in (getattr(one, "sub_actions", None) or (one,))]
        assert [tuple(piece) for piece in mine] == [(kinds[a[1].name], a[0], a[2]) for a in flat]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("schedule", BOTH)
def test_each_two_ranks_send_and_receive_in_the_same_order(schedule: str, ranks: int) -> None:
    """With their messages: an order of their own on each side would mix them up, or wait for ever on GPUs."""
    from trainshed.parallel.stages.actions import with_messages

    def seat(stage: int) -> int:
        return int(work_of.seat_of(stage, ranks, schedule))

    for microbatches in (1, 2 * ranks - 1, 2 * ranks, 11):
        orders = simulate.order(schedule, ranks, 2, microbatches)
        found: dict[tuple[int, int], list[Any]] = {}
        for rank, mine in enumerate(with_messages(orders, list(map(seat, range(2 * ranks))))):
            for kind, stage, number in mine:
                way = kind.rpartition(" ")[2]
                if kind in ("send forward", "receive backward"):
                    found.setdefault((rank, seat(stage + 1)), []).append((way, stage, number))
                elif kind in ("receive forward", "send backward"):
                    found.setdefault((rank, seat(stage - 1)), []).append((way, stage - 1, number))
        assert set(found) == {(a, b) for a in range(ranks) for b in (a - 1, a + 1) if 0 <= b < ranks}
        assert all(found[a, b] == found[b, a] for a, b in found)


def test_one_stage_on_each_rank_is_the_schedule_that_goes_round() -> None:
    for schedule in BOTH:
        assert simulate.order(schedule, 3, 1, 4) == simulate.order("interleavedzerobubble", 3, 1, 4)
        assert [work_of.seat_of(stage, 3, schedule) for stage in range(3)] == [0, 1, 2]
