"""Messages between the stages of ranks: as torch puts them into an order of work."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch
KINDS = ("interleaved1f1b", "interleavedzerobubble", "zbvzerobubble", "dualpipev")


def test_messages_are_where_torch_puts_them() -> None:
    from torch.distributed.pipelining.schedules import _Action, _add_send_recv, _ComputationType

    from trainshed.parallel.ground.schedule_work import Work, seat_of
    from trainshed.parallel.plan.simulate import order
    from trainshed.parallel.stages.actions import KINDS as NAMES
    from trainshed.parallel.stages.actions import with_messages

    types = {ours: _ComputationType[theirs] for theirs, ours in NAMES.items()}

    def of_torch(orders: list[list[Work]], seats: list[int]) -> list[list[Any]]:
        work = {rank: [_Action(w.stage, types[w.kind], w.microbatch) for w in mine] for rank, mine in enumerate(orders)}
        made = _add_send_recv(work, seats.__getitem__, len(seats))
        return [made[rank] for rank in range(len(orders))]

    for kind in KINDS:
        for ranks, microbatches in ((1, 2), (2, 4), (3, 6), (4, 8)):
            every = order(kind, ranks, 2, microbatches)
            seats = [seat_of(stage, ranks, kind) for stage in range(2 * ranks)]
            for orders in (every, [[one for one in mine if one.kind == "forward"] for mine in every]):
                found = [
                    [_Action(w.stage, types[w.kind], w.microbatch) for w in mine] for mine in with_messages(orders, seats)
                ]
                assert found == of_torch(orders, seats), (kind, ranks)


def test_work_that_waits_for_itself_is_refused() -> None:
    from trainshed.parallel.ground.schedule_work import Work
    from trainshed.parallel.stages.actions import with_messages

    with pytest.raises(ValueError, match="waits for itself"):
        with_messages(
            [[Work("backward", 0, 0), Work("forward", 0, 0)], [Work("forward", 1, 0), Work("backward", 1, 0)]], [0, 1]
        )
