"""Lines between hosts: messages in stages, each of which can go on while the host computes.

A generator (`Stages`) yields the messages that it has begun, and is resumed when they have ended: `Flight` does that,
without a thread of its own (gloo's threads carry the messages). Numbers pass through main memory, by gloo.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
Stages = Generator[Sequence[Any], None, T]  # yields torch's Works; returns what came of it


class Line:
    """The first ranks of the hosts, one each, in a process group of gloo.

    host, hosts: which one this is, and how many there are.
    sent: bytes that this host has given to others, as a ring does it.
    """

    def __init__(self, group: Any, host: int, hosts: int) -> None:
        self._group, self.host, self.hosts = group, host, hosts
        self.sent = 0

    def abandon(self) -> None:
        """Never takes it apart, even at the process's end: that would wait for messages of a host that stands still."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))

    def summed(self, flat: torch.Tensor) -> Stages[torch.Tensor]:
        """The sum over hosts of [n], of the same type."""
        held = flat.to("cpu", copy=True)
        yield [self._group.allreduce([held])]
        self.sent += round(2 * (self.hosts - 1) / self.hosts * held.numel() * held.element_size())
        return held.to(flat.device)

    def traded(self, given: torch.Tensor) -> Stages[torch.Tensor]:
        """Of [hosts x n] bytes each host gets its n of every host: [hosts x n]."""
        held = given.cpu()
        taken = torch.empty_like(held)
        yield [self._group.alltoall_base(taken, held, [], [])]
        self.sent += (self.hosts - 1) * (given.numel() // self.hosts)
        return taken.to(given.device)

    def gathered(self, told: torch.Tensor) -> Stages[list[torch.Tensor]]:
        """Returns what every host gives, alike in shape, in the order of hosts."""
        held = told.cpu()
        lines = [torch.empty_like(held) for _ in range(self.hosts)]
        yield [self._group.allgather([lines], [held])]
        self.sent += (self.hosts - 1) * held.numel() * held.element_size()
        return [one.to(told.device) for one in lines]

    def spread(self, tensors: Sequence[torch.Tensor], source: int = 0) -> Stages[list[torch.Tensor]]:
        """Those of host `source`, on all; of the same shapes and types everywhere."""
        held = [one.detach().to("cpu", copy=True).contiguous() for one in tensors]
        yield [broadcast(self._group, one, source) for one in held]
        if self.host == source:
            self.sent += (self.hosts - 1) * sum(one.numel() * one.element_size() for one in held)
        return [one.to(given.device) for one, given in zip(held, tensors, strict=True)]


def broadcast(group: Any, tensor: torch.Tensor, source: int) -> Any:
    """Begins to give a tensor to all of a group, in place; `source` is a number within it."""
    options = dist.BroadcastOptions()
    options.rootRank = source
    return group.broadcast([tensor], options)


class Flight(Generic[T]):
    """Stages on their way. Each call of `advance` goes on with them as far as messages have come.

    landed: whether they are over, well or with an error, which `land` raises.
    """

    def __init__(self, stages: Stages[T]) -> None:
        self._stages, self._works = stages, list[Any]()
        self._result: T | None = None
        self._error: Exception | None = None
        self.landed = False
        self._go_on()

    @classmethod
    def landed_with(cls, result: T) -> Flight[T]:
        """One that is over: its result is known."""

        def nothing() -> Stages[T]:
            return result
            yield  # a generator

        return cls(nothing())

    def advance(self) -> None:
        """Goes on without waiting."""
        while not self.landed and all(work.is_completed() for work in self._works):
            self._go_on()

    def land(self) -> T:
        """Waits for the rest. Raises what a stage raises, each time: RuntimeError if a host is lost."""
        while not self.landed:
            self._go_on()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # T may be None

    def _go_on(self) -> None:
        lost: RuntimeError | None = None
        for work in self._works:
            try:
                work.wait()
            except RuntimeError as error:
                lost = error
        try:
            self._works = list(next(self._stages) if lost is None else self._stages.throw(lost))
        except StopIteration as stop:
            self._result, self.landed = stop.value, True
        except Exception as error:
            self._error, self.landed = error, True
