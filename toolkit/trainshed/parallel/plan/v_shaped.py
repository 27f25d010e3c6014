"""The order of work where stages go through the ranks and back: rank r of P has stage r ("0") and stage 2 P - 1 - r ("1").

ZB-V (Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6): a rank keeps the activations of no more than
2 P microbatches of its half stages, which is what 1F1B's first rank keeps; where forward, input gradient and weight gradient
take equally long, ranks wait at the ends of a step alone.

DualPipeV (Sea AI Lab, Cut-in-half DualPipe, 2025; after DeepSeek-V3's DualPipe, arXiv 2412.19437, section 3.2): a forward of
one half and a backward of the other take turns, which leaves room to send while something is computed. Only the backwards at
both ends come in two parts, and nothing else pays for that.

Each is written down as phases: how often a rank does a few pieces of work. F is a forward, B the gradients of a stage's
inputs, W those of its parameters, D both at once; "W" without a number is the oldest that is waiting, of either stage. The
n-th piece of a kind is that of microbatch n. The phases are for as many microbatches as fill the pipeline; with fewer, those
that do not exist are left out, which takes waiting away and adds none.
"""

from __future__ import annotations

from collections import Counter, deque

from ..ground.schedule_work import Work

_KINDS = {"F": "forward", "B": "backward", "W": "weight", "D": "whole"}
# How often, and what.
_Phase = tuple[int, str]


def v_shaped(schedule: str, ranks: int, microbatches: int) -> list[list[Work]]:
    """Work of each rank, in order.

    Args:
        schedule: "zbvzerobubble" or "dualpipev".
    """
    phases, fill = (_zb_v, 2 * ranks - 1) if schedule == "zbvzerobubble" else (_dual_pipe_v, 2 * ranks)
    found = []
    for rank in range(ranks):
        work = _written(phases(rank, ranks, max(fill, microbatches)), (rank, 2 * ranks - 1 - rank))
        found.append([piece for piece in work if piece.microbatch < microbatches])
    return found


def _zb_v(rank: int, ranks: int, count: int) -> list[_Phase]:
    after = ranks - rank - 1  # ranks between this one and the turn
    return [
        (2 * after + 1, "F0"),
        (rank, "F1 F0"),
        (after + 1, "F1 B1 W1"),
        (count - 2 * ranks + rank + 1, "F0 B0 W0 F1 B1 W1"),
        (after, "B0 W0 F1 B1 W1"),
        (rank, "B0 B1"),
        (after + 1, "B0 W0"),
        (rank, "W1"),
        (rank, "W0"),
    ]


def _dual_pipe_v(rank: int, ranks: int, count: int) -> list[_Phase]:
    after = ranks - rank - 1
    pairs, odd = divmod(rank + 1, 2)
    return [
        (2 * after, "F0"),
        (rank + 1, "F0 F1"),
        (after, "B1 W F1"),
        (count - 2 * ranks + rank + 1, "F0 D1 F1 D0"),
        (after, "D1 F1 D0"),
        (pairs, "D1 D0"),  # the last half of those that are left come in two parts
        (odd, "D1 B0"),
        (pairs, "B1 B0"),
        (after, "W B0"),
        (rank + 1, "W"),
    ]


def _written(phases: list[_Phase], stages: tuple[int, int]) -> list[Work]:
    """The phases as work on a rank's two stages."""
    done: Counter[tuple[str, int]] = Counter()
    waiting: deque[Work] = deque()
    found = []
    for times, pattern in phases:
        for piece in pattern.split() * times:
            if piece.startswith("W"):
                half = int(piece[1:]) if piece[1:] else None
                work = next(one for one in waiting if half is None or one.stage == stages[half])
                waiting.remove(work)
            else:
                half = int(piece[1:])
                turn = "F" if piece.startswith("F") else "B", half
                work = Work(_KINDS[piece[0]], stages[half], done[turn])
                done[turn] += 1
                if piece.startswith("B"):
                    waiting.append(work._replace(kind="weight"))
            found.append(work)
    return found
