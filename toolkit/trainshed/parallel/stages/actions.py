"""Runs an order of forwards, backwards and messages on the stages of one rank.

torch's own runtime does so, too. Beside each action it opens a range of the profiler, writes a line of a log and looks for
FSDP, which takes a twentieth of a step with small stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from ..ground.schedule_work import Work
from ..ground.torch_private import by_our_loop
from .stage import ReplayStage

_Key = tuple[str, int, int]
# torch's names of what a rank does, and ours; what is about FSDP has none.
KINDS = {
    "FORWARD": "forward",
    "FULL_BACKWARD": "whole",
    "BACKWARD_INPUT": "backward",
    "BACKWARD_WEIGHT": "weight",
    "SEND_F": "send forward",
    "RECV_F": "receive forward",
    "SEND_B": "send backward",
    "RECV_B": "receive backward",
}


@by_our_loop
class ActionRuntime(PipelineScheduleMulti):
    """An order of torch's schedules; forwards and their messages alone where there is no loss."""

    def __init__(
        self, stages: list[ReplayStage], n_microbatches: int, loss_fn: Callable[..., Any] | None = None, **options: Any
    ) -> None:
        super().__init__(stages, n_microbatches, loss_fn=loss_fn, **options)  # type: ignore[arg-type]
        self.here: dict[int, Any] = {stage.stage_index: stage for stage in stages}
        self.microbatches, self.trains = n_microbatches, loss_fn is not None

    @cached_property
    def work(self) -> list[Work]:
        """What this rank does in a step, messages included."""
        mine: Any = self.pipeline_order_with_comms[self.rank]  # type: ignore[attr-defined]
        found = ((KINDS.get(one.computation_type.name), one) for one in mine if one.microbatch_index is not None)
        return [Work(kind, one.stage_index, one.microbatch_index) for kind, one in found if kind is not None]

    def run_all(self, microbatches: list[Any]) -> None:
        """Runs a step, with the arguments of each microbatch."""
        stages = self.here
        coming: dict[_Key, list[dist.Work]] = {}
        sent: list[dist.Work] = []
        losses: dict[int, torch.Tensor] = {}
        for kind, index, number in self.work:
            stage: ReplayStage = stages[index]
            if kind == "forward":
                if not stage.is_first and index - 1 not in stages:
                    _wait(coming.pop(("receive forward", index, number)))
                output = stage.forward_one_chunk(number, microbatches[number])
                if stage.is_last:
                    losses[number] = output
                elif index + 1 in stages:
                    stages[index + 1].set_local_fwd_input(output, number)
            elif kind == "receive forward":
                coming[kind, index, number] = _begun(stage.get_fwd_recv_ops(number), "group_src")
            elif kind == "send forward":
                sent += _begun(stage.get_fwd_send_ops(number), "group_dst")
            elif not self.trains:
                continue
            elif kind in ("whole", "backward"):
                if not stage.is_last and index + 1 not in stages:
                    _wait(coming.pop(("receive backward", index, number)))
                stage.backward_one_chunk(number, losses.pop(number) if stage.is_last else None, kind == "whole")
                if index - 1 in stages:
                    stages[index - 1].set_local_bwd_input(stage.get_local_bwd_output(number), number)
            elif kind == "weight":
                stage.backward_weight_one_chunk(number)
            elif kind == "receive backward":
                coming[kind, index, number] = _begun(stage.get_bwd_recv_ops(number), "group_src")
            elif kind == "send backward":
                sent += _begun(stage.get_bwd_send_ops(number), "group_dst")
        _wait(sent)


def _begun(messages: Sequence[dist.P2POp], peer: str) -> list[dist.Work]:
    """Begins messages that all go to another rank, or all come from one."""
    return [one.op(one.tensor, group=one.group, tag=one.tag, **{peer: one.group_peer}) for one in messages]


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def with_messages(orders: Sequence[Sequence[Work]], seats: Sequence[int]) -> list[list[Work]]:
    """The work of each rank with the messages between stages on different ranks.

    A rank sends what it has made at once; the receiver is ready for it where the sender has come that far in one walk over
    all ranks. Sends and receives of two ranks are then in the same order, so that none waits for another forever.

    Args:
        seats: the rank of each stage.

    Raises:
        ValueError: the work of some rank waits for itself.
    """
    found: list[list[Work]] = [[] for _ in orders]
    done: list[set[Work]] = [set() for _ in orders]
    waiting = [list(reversed(order)) for order in orders]
    while any(waiting):
        moved = False
        for rank, left in enumerate(waiting):
            if not left or not _is_ready(left[-1], done[rank], len(seats)):
                continue
            work, moved = left.pop(), True
            found[rank].append(work)
            done[rank].add(work)
            for message, to in _messages(work, seats):
                found[to].append(message)
                done[to].add(message)
        if not moved:
            raise ValueError("the order of work waits for itself")
    return found


def _messages(work: Work, seats: Sequence[int]) -> Iterator[tuple[Work, int]]:
    """What is sent when a piece of work is done, and received: each with its rank."""
    way = "forward" if work.kind == "forward" else "backward"
    to = work.stage + (1 if way == "forward" else -1)
    if work.kind != "weight" and 0 <= to < len(seats) and seats[to] != seats[work.stage]:
        yield Work(f"send {way}", work.stage, work.microbatch), seats[work.stage]
        yield Work(f"receive {way}", to, work.microbatch), seats[to]


def _is_ready(work: Work, done: set[Work], stages: int) -> bool:
    """Whether a rank has what a piece of work needs, or has begun to receive it."""
    if work.kind == "weight" or work.stage == (0 if work.kind == "forward" else stages - 1):
        return True
    if work.kind == "forward":
        made, before, kinds = "receive forward", work.stage - 1, ["forward"]
    else:
        made, before, kinds = "receive backward", work.stage + 1, ["backward", "whole"]
    needed = [Work(made, work.stage, work.microbatch), *(Work(kind, before, work.microbatch) for kind in kinds)]
    return not done.isdisjoint(needed)
