"""How fast the ranks of a pipeline talk, measured before a plan is made."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from ..ground.grid import Grid
from ..plan.costs import Link

_LARGE = 2**20  # bytes; long enough for the bandwidth to show, short enough for a slow network
_SMALL_TRIPS, _LARGE_TRIPS = 5, 3


def measure_link(grid: Grid) -> Link:
    """The slowest link between neighbours of this rank's pipeline, from the quickest of a few round trips. Collective."""
    worst = torch.zeros(2)
    for left in range(len(grid.pipeline_ranks) - 1):
        if grid.place.pipeline in (left, left + 1):
            small = _one_way(grid, left, 1, _SMALL_TRIPS)
            large = _one_way(grid, left, _LARGE, _LARGE_TRIPS)
            found = torch.tensor([small, max(large - small, 1e-9) / _LARGE])
            worst = torch.maximum(worst, found)
    worst = worst.to(grid.device)
    dist.all_reduce(worst, dist.ReduceOp.MAX, group=grid.pipeline_group)
    latency, per_byte = worst.tolist()
    return Link(latency, 1 / max(per_byte, 1e-12))


def _one_way(grid: Grid, left: int, size: int, trips: int) -> float:
    """Seconds from `left` to its right neighbour: half of the quickest round trip."""
    tensor = torch.zeros(size, dtype=torch.uint8, device=grid.device)
    first = grid.place.pipeline == left
    other = grid.pipeline_ranks[left + 1 if first else left]
    times = []
    for _ in range(trips + 1):
        started = time.perf_counter()
        for sends in (first, not first):
            if sends:
                dist.send(tensor, other, group=grid.pipeline_group)
            else:
                dist.recv(tensor, other, group=grid.pipeline_group)
        if grid.device.type == "cuda":
            torch.cuda.synchronize(grid.device)
        times.append(time.perf_counter() - started)
    return min(times[1:]) / 2  # the first one may set the connection up
