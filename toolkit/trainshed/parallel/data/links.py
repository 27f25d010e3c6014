"""How long messages take here, on each way that they could go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from .bucket_plan import MIB, Batch, Cost, fitted

_SMALL, _LARGE = 4 << 10, MIB // 2  # bytes of a message
_QUEUE = 8  # small messages at once
_FEWEST, _MOST = 2, 24  # large messages at once, as buckets are
_LARGER = 4  # times as large, and as few; where there are enough of them for two
_TRY = 0.12  # seconds that a try should take: links let the first bytes after a pause pass at once
_TRIES = 3

Way = Callable[[torch.Tensor, Callable[[BaseException | None], None]], None]


def link_costs(ways: Mapping[str, Way], group: Any) -> dict[str, Cost]:
    """The cost of each way, the same on all ranks of `group`. Collective; it takes some seconds.

    Args:
        ways: each begins to exchange a tensor, and calls back, from any thread, when that is over.
        group: of the ranks that take part.
    """
    for way in ways.values():
        _timed(way, 1, _SMALL, group)  # connections are made by the first
    one = min(_timed(next(iter(ways.values())), 2, _LARGE, group).seconds / 2 for _ in range(2))
    few, rest = divmod(max(_FEWEST, min(_MOST, round(_TRY / one))), _LARGER)
    batches = [(1, _SMALL), (_QUEUE, _SMALL), (few * _LARGER if few > 1 else few * _LARGER + rest, _LARGE)]
    if few > 1:
        batches.append((few, _LARGER * _LARGE))
    best: dict[tuple[str, int, int], Batch] = {}
    for _ in range(_TRIES):  # in turns: what else the machine does hits all alike
        for name, way in ways.items():
            for count, size in batches:
                found, key = _timed(way, count, size, group), (name, count, size)
                if key not in best or found.seconds < best[key].seconds:
                    best[key] = found
    costs: dict[str, Cost] = {}
    for name in ways:
        single, small, many, *fewer = (best[name, count, size] for count, size in batches)
        costs[name] = fitted(single, small, many, fewer[0] if fewer else None)
    return costs


def _timed(way: Way, count: int, size: int, group: Any) -> Batch:
    """How long messages take that begin together, on the slowest rank."""
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
    return Batch(count, size, float(seconds.item()))


class Wait:
    """The callback that a way calls when it is over, and how to wait for it."""

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
