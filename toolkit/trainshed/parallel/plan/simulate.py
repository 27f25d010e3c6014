"""Predicts how long a step takes: each schedule's order of work on each rank, and when each piece can start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trainshed.contract.wire.pipeline import V_SHAPED

from ..ground.schedule_work import Work
from .v_shaped import v_shaped

# Schedules whose backward comes in two parts.
ZERO_BUBBLE = ("interleavedzerobubble", *V_SHAPED)


def order(schedule: str, ranks: int, virtual: int, microbatches: int) -> list[list[Work]]:
    """Work of each rank, in order.

    Args:
        schedule: "gpipe", "1f1b", "interleaved1f1b", "interleavedzerobubble", "zbvzerobubble" or "dualpipev"; the last two
            are the one before them where a rank has one stage.
    """
    if schedule in V_SHAPED and virtual == 2:
        return v_shaped(schedule, ranks, microbatches)
    if schedule == "gpipe":
        return [
            [Work(kind, rank, m) for kind in ("forward", "backward") for m in range(microbatches)] for rank in range(ranks)
        ]
    if schedule == "1f1b":
        virtual = 1
    split = schedule in ZERO_BUBBLE
    return [_alternating(rank, ranks, virtual, microbatches, split) for rank in range(ranks)]


def most_kept(work: Sequence[Work], stage: int | None = None) -> int:
    """Microbatches that a rank keeps activations of at most, summed over its stages or for one of them.

    Args:
        work: of the rank, in order.
    """
    work = [piece for piece in work if stage in (None, piece.stage)]
    left = Counter((piece.stage, piece.microbatch) for piece in work)
    kept = most = 0
    for piece in work:
        one = piece.stage, piece.microbatch
        left[one] -= 1
        kept += (piece.kind == "forward") - (not left[one])
        most = max(most, kept)
    return most


def _alternating(rank: int, ranks: int, virtual: int, microbatches: int, split: bool) -> list[Work]:
    """One forward, one backward after a warm-up; chunks of a rank take turns in rounds of microbatches.

    Args:
        split: a backward's weight part comes `rank` backwards later; the warm-up is as short as it can be.
    """
    rounds = max(1, microbatches // ranks)
    per_round = microbatches // rounds
    total = microbatches * virtual

    def work(index: int, kind: str) -> Work:
        group, inside = divmod(index, per_round * virtual)
        chunk, offset = divmod(inside, per_round)
        chunk = chunk if kind == "forward" else virtual - 1 - chunk
        return Work(kind, chunk * ranks + rank, group * per_round + offset)

    warm = (ranks - rank - 1) * (1 if virtual == 1 or split else 2) + (virtual - 1) * per_round
    warm = min(warm, total)
    done = [work(index, "forward") for index in range(warm)]
    for index in range(total):
        if warm + index < total:
            done.append(work(warm + index, "forward"))
        done.append(work(index, "backward"))
        if split and index >= rank:
            done.append(work(index - rank, "weight"))
    if split:
        done += [work(index, "weight") for index in range(max(0, total - rank), total)]
    return done


def step_seconds(
    orders: list[list[Work]],
    forward: Sequence[float],
    backward: Sequence[float],
    talk: Sequence[float],
    weight: Sequence[float] = (),
) -> tuple[float, list[float]]:
    """Seconds of a step and each rank's busy seconds.

    Args:
        forward, backward, weight: seconds of each stage for one microbatch.
        talk: seconds to send over the boundary after each stage.
    """
    pieces = placed(orders, forward, backward, talk, weight)
    busy = [sum(end - start for _, start, end in done) for done in pieces]
    return max(done[-1][2] if done else 0.0 for done in pieces), busy


def placed(
    orders: list[list[Work]],
    forward: Sequence[float],
    backward: Sequence[float],
    talk: Sequence[float],
    weight: Sequence[float] = (),
) -> list[list[tuple[Work, float, float]]]:
    """When each rank's work starts and ends, in seconds from the start of the step; arguments as for `step_seconds`."""
    ranks, last = len(orders), len(forward) - 1
    both = [now + later for now, later in zip(backward, weight, strict=True)] if weight else []
    costs = {"forward": forward, "backward": backward, "weight": weight, "whole": both}
    ended: dict[Work, float] = {}
    done: list[list[tuple[Work, float, float]]] = [[] for _ in orders]
    clock, at = [0.0] * ranks, [0] * ranks
    while any(at[rank] < len(orders[rank]) for rank in range(ranks)):
        moved = False
        for rank in range(ranks):
            while at[rank] < len(orders[rank]):
                work = orders[rank][at[rank]]
                ready = _ready(work, ended, last, talk)
                if ready is None:
                    break
                seconds = costs[work.kind][work.stage]
                start = max(clock[rank], ready)
                clock[rank] = ended[work] = start + seconds
                done[rank].append((work, start, clock[rank]))
                at[rank] += 1
                moved = True
        if not moved:
            raise ValueError("the order of work waits for itself")
    return done


def _ready(work: Work, ended: dict[Work, float], last: int, talk: Sequence[float]) -> float | None:
    """When the work's input is there; None while what it waits for has not been placed."""
    if work.kind == "weight":
        return ended.get(work._replace(kind="backward"))
    if work.kind in ("backward", "whole"):
        own = ended.get(work._replace(kind="forward"))
        if own is None or work.stage == last:
            return own
        behind = work._replace(stage=work.stage + 1)
        after = ended.get(behind._replace(kind="backward"), ended.get(behind._replace(kind="whole")))
        return None if after is None else max(own, after + talk[work.stage])
    if work.stage == 0:
        return 0.0
    before = ended.get(work._replace(stage=work.stage - 1))
    return None if before is None else before + talk[work.stage - 1]
