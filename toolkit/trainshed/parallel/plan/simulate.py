"""Predicts how long a step takes: each schedule's order of work on each rank, and when each piece can start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Work(NamedTuple):
    """A forward or backward of one microbatch on one stage."""

    backward: bool
    stage: int
    microbatch: int


def order(schedule: str, ranks: int, virtual: int, microbatches: int) -> list[list[Work]]:
    """Work of each rank, in order.

    Args:
        schedule: "gpipe", "1f1b" or "interleaved1f1b".
    """
    if schedule == "gpipe":
        return [
            [Work(False, rank, m) for m in range(microbatches)] + [Work(True, rank, m) for m in range(microbatches)]
            for rank in range(ranks)
        ]
    if schedule == "1f1b":
        virtual = 1
    return [_alternating(rank, ranks, virtual, microbatches) for rank in range(ranks)]


def _alternating(rank: int, ranks: int, virtual: int, microbatches: int) -> list[Work]:
    """One forward, one backward after a warm-up; chunks of a rank take turns in rounds of microbatches."""
    rounds = max(1, microbatches // ranks)
    per_round = microbatches // rounds
    total = microbatches * virtual

    def work(index: int, backward: bool) -> Work:
        group, inside = divmod(index, per_round * virtual)
        chunk, offset = divmod(inside, per_round)
        chunk = virtual - 1 - chunk if backward else chunk
        return Work(backward, chunk * ranks + rank, group * per_round + offset)

    warm = ranks - rank - 1 if virtual == 1 else (ranks - rank - 1) * 2 + (virtual - 1) * per_round
    warm = min(warm, total)
    done = [work(index, False) for index in range(warm)]
    for index in range(total):
        if warm + index < total:
            done.append(work(warm + index, False))
        done.append(work(index, True))
    return done


def step_seconds(
    orders: list[list[Work]], forward: Sequence[float], backward: Sequence[float], talk: Sequence[float]
) -> tuple[float, list[float]]:
    """Seconds of a step and each rank's busy seconds.

    Args:
        forward, backward: seconds of each stage for one microbatch.
        talk: seconds to send over the boundary after each stage.
    """
    ranks, last = len(orders), len(forward) - 1
    ended: dict[Work, float] = {}
    clock, busy, at = [0.0] * ranks, [0.0] * ranks, [0] * ranks
    while any(at[rank] < len(orders[rank]) for rank in range(ranks)):
        moved = False
        for rank in range(ranks):
            while at[rank] < len(orders[rank]):
                work = orders[rank][at[rank]]
                ready = _ready(work, ended, last, talk)
                if ready is None:
                    break
                seconds = (backward if work.backward else forward)[work.stage]
                clock[rank] = max(clock[rank], ready) + seconds
                busy[rank] += seconds
                ended[work] = clock[rank]
                at[rank] += 1
                moved = True
        if not moved:
            raise ValueError("the order of work waits for itself")
    return max(clock), busy


def _ready(work: Work, ended: dict[Work, float], last: int, talk: Sequence[float]) -> float | None:
    """When the work's input is there; None while what it waits for has not been placed."""
    if work.backward:
        own = ended.get(Work(False, work.stage, work.microbatch))
        if own is None or work.stage == last:
            return own
        after = ended.get(Work(True, work.stage + 1, work.microbatch))
        return None if after is None else max(own, after + talk[work.stage])
    if work.stage == 0:
        return 0.0
    before = ended.get(Work(False, work.stage - 1, work.microbatch))
    return None if before is None else before + talk[work.stage - 1]
