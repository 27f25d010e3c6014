"""Measures what the ranks of a job have to work with, before its model is there: speed, links, memory. It takes less than a
second on a quiet machine.

Ranks that share cores are slower when all of them work. So a product of matrices is timed on one rank alone, and on all at
once, and sums over ranks are timed while all of them take part.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from trainshed.contract.wire.pipeline import PipelineSettings

from .ground.grid import Joined
from .ground.memory import SPARE, Found, find_memory
from .plan.plan_options import How

_SMALL, _LARGE = 2**10, 2**22  # bytes of a sum
_SUMS = 5
_SECONDS = 0.06  # of products
_COUNTED = 1e13  # operations a second of the device that a plan counts for
_CROWDED = 1.1


@dataclass(frozen=True)
class _Rank:
    """What a rank says of itself."""

    host: str
    memory: Found


def measure(joined: Joined, settings: PipelineSettings, device: torch.device) -> How:
    """How a plan for these ranks is to be made. Collective."""
    ranks: list[Any] = [None] * joined.world
    own = _Rank(os.environ.get("GROUP_RANK") or socket.gethostname(), find_memory(device))
    dist.all_gather_object(ranks, own, group=joined.control)
    hosts = [rank.host for rank in ranks]
    each = ranks_of_a_host(hosts)
    limit = memory_of_a_rank([rank.memory for rank in ranks], hosts, shared=device.type != "cuda")
    alone, together = _speeds(joined, settings, device)
    inside = between = (0.0, 0.0)
    if joined.world > 1:
        between = _sums(joined, device, [list(range(joined.world))])
        inside = _sums(joined, device, _by_host(joined.world, each)) if 1 < each < joined.world else between
    return How(
        count=True,
        ranks=joined.world,
        gbits=between[1] or How.gbits,
        gbits_host=inside[1],
        ranks_per_host=each,
        slower=_COUNTED / alone,
        crowd=together if together > _CROWDED else 1.0,
        latency=between[0],
        latency_host=inside[0],
        device=device.type,
        limit_mib=min([limit, *([settings.memory_limit] if settings.memory_limit else [])]),
    )


def ranks_of_a_host(hosts: list[str]) -> int:
    """How many ranks share each host; 0 where they do not come in groups of one size."""
    count = hosts.count(hosts[0])
    groups = [hosts[start : start + count] for start in range(0, len(hosts), count)]
    even = all(len(group) == count and len(set(group)) == 1 for group in groups) and len(set(hosts)) == len(groups)
    return count if even else 0


def memory_of_a_rank(found: list[Found], hosts: list[str], *, shared: bool) -> int:
    """MiB that each rank may take: what the poorest finds, less a reserve.

    Args:
        shared: whether the ranks of a host share its memory.
    """
    own = []
    for rank, host in zip(found, hosts, strict=True):
        beside = [other for other, there in zip(found, hosts, strict=True) if there == host]
        free = rank.free / (len(beside) if shared else 1)
        if rank.group is not None:
            free = min(free, rank.group / sum(other.sharers == rank.sharers for other in beside))
        own.append(free)
    return max(1, int(min(own) / SPARE / 2**20))


def _speeds(joined: Joined, settings: PipelineSettings, device: torch.device) -> tuple[float, float]:
    """Operations a second of the first rank alone; how many times longer they take when all ranks work."""
    kind = torch.float32
    if device.type == "cuda" and (settings.bf16 or settings.fp16):
        kind = torch.bfloat16 if settings.bf16 else torch.float16
    size = 4096 if device.type == "cuda" else 384
    matrix = torch.ones(size, size, device=device, dtype=kind)

    def product() -> None:
        torch.mm(matrix, matrix)

    product()
    dist.barrier(joined.control)
    alone = _seconds(product, device) if joined.rank == 0 else 0.0
    dist.barrier(joined.control)
    together = _seconds(product, device)
    found: list[Any] = [None] * joined.world
    dist.all_gather_object(found, (alone, together), group=joined.control)
    first = found[0][0]
    return 2 * size**3 / first, max(1.0, median(one for _, one in found) / first)


def _seconds(action: Callable[[], None], device: torch.device) -> float:
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < _SECONDS or count < 2:
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        count += 1
    return passed / count


def _by_host(world: int, each: int) -> list[list[int]]:
    return [list(range(start, start + each)) for start in range(0, world, each)]


def _sums(joined: Joined, device: torch.device, groups: list[list[int]]) -> tuple[float, float]:
    """Seconds of a message, and Gbit/s between ranks while all of these groups sum over rings: in one of n ranks a sum is
    2 (n - 1) messages one after the other, of an n-th of its bytes each."""
    made = [dist.new_group(ranks) for ranks in groups]
    own = next(group for group, ranks in zip(made, groups, strict=True) if joined.rank in ranks)
    seconds = []
    for size in (_SMALL, _LARGE):
        tensor = torch.zeros(size // 4, device=device)
        dist.all_reduce(tensor, group=own)  # connections are made by the first
        dist.barrier(joined.control)
        seconds.append(median(_once(tensor, own) for _ in range(_SUMS)))
    found: list[Any] = [None] * joined.world
    dist.all_gather_object(found, seconds, group=joined.control)
    for group in made:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    small, large = (max(one[at] for one in found) for at in (0, 1))
    count = len(groups[0])
    messages = 2 * (count - 1)
    # Where something else delayed the small ones, the large ones still took no less than their bytes.
    return small / messages, messages / count * _LARGE * 8 / max(large / 2, large - small) / 1e9


def _once(tensor: torch.Tensor, group: Any) -> float:
    began = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter() - began
