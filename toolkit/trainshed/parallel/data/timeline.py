"""Watches steps of DDP: when each gradient is ready, and when their exchange is over."""

from __future__ import annotations

import statistics
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from ..ground.torch_private import autograd_engine
from .bucket_plan import Gradient, Timeline

_KEPT = 512  # steps whose beginnings are kept while nothing else is looked at


@dataclass
class _Step:
    """Clock times of one step."""

    ready: dict[int, float] = field(default_factory=dict)
    end: float = 0.0


class StepWatch:
    """Looks at the gradients of parameters, from backward passes that exchange them.

    Args:
        parameters: those that DDP exchanges.
        always: whether every backward has all their gradients: one hook then sees each step.

    Attributes:
        steps: backward passes with an exchange that have begun; the same on all ranks.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], always: bool) -> None:
        self.steps = 0
        self._always = always
        self._armed = False
        self._done: list[_Step] = []
        self._now: _Step | None = None
        self._beats: deque[float] = deque(maxlen=_KEPT)
        self._parameters = [weakref.ref(one) for one in parameters]
        self._sizes = {number: one.numel() * one.element_size() for number, one in enumerate(parameters)}
        self._handles: list[Any] = []
        self.look()

    def forward_begins(self, exchanges: bool) -> None:
        """The next backward exchanges gradients, or only collects them."""
        self._armed = exchanges
        if not exchanges:
            self._now = None

    def look(self) -> None:
        """From now on at every gradient."""
        self._hook(self._noting)

    def rest(self) -> None:
        """From now on only at the time of each step."""
        self.forget()
        self._now = None
        self._beats.clear()
        self._hook(self._counting, [0] if self._always else None)  # the same one on all ranks, whatever becomes of it

    def close(self) -> None:
        """Takes the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def forget(self) -> None:
        """Drops what was seen, not the number of steps."""
        self._done = []

    def periods(self) -> list[float]:
        """Seconds from one step to the next while resting, and forgets them."""
        found = [later - earlier for earlier, later in pairwise(self._beats)]
        self._beats.clear()
        return found

    def timeline(self) -> Timeline | None:
        """Medians of the steps seen; None before there are two."""
        done = [step for step in self._done if step.end]
        if len(done) < 2:
            return None
        firsts = [min(step.ready.values()) for step in done]
        ready = {
            number: statistics.median(
                step.ready[number] - first for step, first in zip(done, firsts, strict=True) if number in step.ready
            )
            for number in done[-1].ready
        }
        gradients = sorted((Gradient(seconds, self._sizes[number]) for number, seconds in ready.items()), key=_when)
        periods = [later - earlier for earlier, later in pairwise(firsts)]
        waited = statistics.median(step.end - max(step.ready.values()) for step in done)
        rest = max(0.0, statistics.median(periods) - gradients[-1].ready - waited)
        return Timeline(tuple(gradients), rest, waited)

    def _hook(self, making: Callable[[int], Any], numbers: Sequence[int] | None = None) -> None:
        self.close()
        for number in range(len(self._parameters)) if numbers is None else numbers:
            parameter = self._parameters[number]()
            if parameter is not None and parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(making(number)))

    def _counting(self, _: int) -> Any:
        def count(_: torch.Tensor) -> None:
            if self._armed:
                self._armed = False
                self.steps += 1
                self._beats.append(time.monotonic())

        return count

    def _noting(self, number: int) -> Any:
        def note(_: torch.Tensor) -> None:
            if self._armed:
                self._armed = False
                self.steps += 1
                self._now = _Step()
                self._done.append(self._now)
                _queue(self._last)
            if self._now is not None:
                self._now.ready[number] = time.monotonic()

        return note

    def _last(self) -> None:
        """Called when all gradients are there. DDP waits for the exchange in a call of its own, so ours comes once more."""
        _queue(self._over)

    def _over(self) -> None:
        if self._now is not None:
            self._now.end = time.monotonic()
            self._now = None


def _when(gradient: Gradient) -> float:
    return gradient.ready


def _queue(call: Any) -> None:
    autograd_engine.queue_callback(call)
