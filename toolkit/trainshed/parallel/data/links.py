"""How long messages take here, on each way that they could go."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from .bucket_plan import MIB, Cost

_SMALL, _LARGE = 4 << 10, MIB // 2  # bytes of a message
_QUEUE = 8  # small messages at once
_FEWEST, _MOST = 2, 24  # large messages at once, as buckets are
_TRY = 0.12  # seconds that a try should take: links let the first bytes after a pause pass at once
_TRIES = 3

Way = Callable[[torch.Tensor, Callable[[BaseException | None], None]], None]


def link_costs(ways: Mapping[str, Way], group: Any) -> dict[str, Cost]:
    """The cost of each way, the same on all ranks of `group`. Collective; it takes about a second.

    Args:
        ways: each begins to exchange a tensor, and calls back, from any thread, when that is over.
        group: of the ranks that take part.
    """
    small: dict[str, float] = {}
    queue: dict[str, float] = {}
    large: dict[str, float] = {}
    for way in ways.values():
        _timed(way, _SMALL, 1, group)  # connections are made by the first
    one = min(_timed(next(iter(ways.values())), _LARGE, 2, group) / 2 for _ in range(2))
    count = max(_FEWEST, min(_MOST, round(_TRY / one)))
    for _ in range(_TRIES):  # in turns: what else the machine does hits all alike
        for name, way in ways.items():
            small[name] = min(small.get(name, math.inf), _timed(way, _SMALL, 1, group))
            queue[name] = min(queue.get(name, math.inf), _timed(way, _SMALL, _QUEUE, group))
            large[name] = min(large.get(name, math.inf), _timed(way, _LARGE, count, group))
    costs: dict[str, Cost] = {}
    for name in ways:
        per_byte = max(1e-12, (large[name] - small[name]) / (count * _LARGE - _SMALL))
        latency = max(0.0, small[name] - per_byte * _SMALL)
        each = max(0.0, (queue[name] - small[name]) / (_QUEUE - 1) - per_byte * _SMALL)
        costs[name] = Cost(latency, per_byte, min(latency, each))
    return costs


def _timed(way: Way, size: int, count: int, group: Any) -> float:
    """Seconds until messages that begin together are over, on the slowest rank."""
    messages = [torch.zeros(size // 4) for _ in range(count)]
    dist.all_reduce(torch.zeros(1), group=group)  # all begin together
    began = time.monotonic()
    waits = [Wait() for _ in messages]
    for message, wait in zip(messages, waits, strict=True):
        way(message, wait)
    for wait in waits:
        wait.result()
    seconds = torch.tensor([time.monotonic() - began], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX, group=group)
    return float(seconds.item())


class Wait:
    """What a way calls when it is over, and how to wait for it."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._error: BaseException | None = None

    def __call__(self, error: BaseException | None) -> None:
        """It is over."""
        self._error = error
        self._over.set()

    def result(self) -> None:
        """Waits. Raises what the way has failed with."""
        self._over.wait()
        if self._error is not None:
            raise self._error
