"""Ranks, groups and messages between ranks."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch.distributed as dist

from trainshed.parallel.ground.errors import PipelineError
from trainshed.parallel.session import grid


class CommGroup(Enum):
    """Groups of ranks; without tensor parallelism MP is PP and RDP is DP, with it (which has no stages here) MP is TP."""

    WORLD = 0
    MP_GROUP = 1
    DP_GROUP = 2
    PP_GROUP = 3
    TP_GROUP = 4
    RDP_GROUP = 5


class RankType(Enum):
    """The set of ranks in which a rank's number counts."""

    WORLD_RANK = 0
    MP_RANK = 1
    DP_RANK = 2
    PP_RANK = 3
    TP_RANK = 4
    RDP_RANK = 5


def members(group: CommGroup) -> list[int]:
    """Global ranks of this rank's group of a kind."""
    place = grid()
    if group is CommGroup.WORLD:
        return list(range(place.world))
    if place.tensor is not None:
        if group is CommGroup.MP_GROUP and len(place.company_ranks) > 1:
            return list(place.company_ranks)
        if group in (CommGroup.MP_GROUP, CommGroup.TP_GROUP):
            return list(place.tensor.ranks)
        if group is CommGroup.RDP_GROUP:
            return list((place.joint or place.tensor).twins)
    if place.context is not None and group in (CommGroup.DP_GROUP, CommGroup.RDP_GROUP):
        return list(place.context.twins)
    if group in (CommGroup.MP_GROUP, CommGroup.PP_GROUP):
        return list(place.pipeline_ranks)
    if group in (CommGroup.DP_GROUP, CommGroup.RDP_GROUP):
        return list(place.replica_ranks)
    return [place.rank]


def process_group(group: CommGroup) -> dist.ProcessGroup:
    """torch's process group of a kind.

    Raises:
        PipelineError: a tensor parallel group where there is none.
    """
    place = grid()
    if group is CommGroup.WORLD:
        return dist.group.WORLD  # type: ignore[return-value]
    if place.tensor is not None:
        if group is CommGroup.MP_GROUP and len(place.company_ranks) > 1:
            return place.company_group
        if group in (CommGroup.MP_GROUP, CommGroup.TP_GROUP):
            return place.tensor.group
        if group is CommGroup.RDP_GROUP:
            return (place.joint or place.tensor).twin_group
    if place.context is not None and group in (CommGroup.DP_GROUP, CommGroup.RDP_GROUP):
        return place.context.twin_group
    if group in (CommGroup.MP_GROUP, CommGroup.PP_GROUP):
        return place.pipeline_group
    if group in (CommGroup.DP_GROUP, CommGroup.RDP_GROUP):
        return place.replica_group
    raise PipelineError("there is no process group for tensor parallelism", hint="set tensor_parallel_degree to 2 or more")


def _global(number: int, kind: RankType) -> int:
    return members(CommGroup(kind.value))[number]


def send(obj: Any, dest: int, rank_type: RankType = RankType.WORLD_RANK) -> None:
    """Sends a picklable object; `dest` takes it with `recv_from`."""
    dist.send_object_list([obj], dst=_global(dest, rank_type), group=grid().control_group)


def recv_from(src: int, rank_type: RankType = RankType.WORLD_RANK) -> Any:
    """Takes what `src` sent or broadcast."""
    received: list[Any] = [None]
    dist.recv_object_list(received, src=_global(src, rank_type), group=grid().control_group)
    return received[0]


def broadcast(obj: Any, group: CommGroup = CommGroup.WORLD) -> None:
    """Sends to all others of the group, which call `recv_from`."""
    for other in members(group):
        if other != grid().rank:
            dist.send_object_list([obj], dst=other, group=grid().control_group)


def allgather(obj: Any, group: CommGroup = CommGroup.WORLD) -> list[Any]:
    """Everybody's object, in the order of the group's ranks."""
    ranks = members(group)
    if len(ranks) == 1:
        return [obj]
    found: list[Any] = [None] * len(ranks)
    dist.all_gather_object(found, obj, group=process_group(group))
    return found


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Waits for all ranks of the group."""
    if len(members(group)) > 1:
        dist.barrier(process_group(group))


def mp_barrier() -> None:
    """Waits for the ranks of this pipeline."""
    barrier(CommGroup.MP_GROUP)


def dp_barrier() -> None:
    """Waits for the ranks that hold the same stages."""
    barrier(CommGroup.DP_GROUP)
