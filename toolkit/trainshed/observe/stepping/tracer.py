"""Records some steps with torch.profiler: those that profilerconfig.json names, and when `trainshed profile` asks for it."""

from __future__ import annotations

import os
import sys
import time

from ..traces import FOLDER, REQUEST, Operator, TraceRequest, TraceResult, answer, answered, asked, trace_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOOK_SECONDS = 0.5  # between two looks for a request
MOST_OPERATORS = 40


class Tracer:
    """One rank's answers.

    Args:
        folder: the profiler's.
        rank: this process's.
        start, steps: those that are recorded without being asked: the first, from 0, and how many; 0 for none.
    """

    def __init__(self, folder: str, rank: int, start: int = 0, steps: int = 0) -> None:
        self._folder, self._rank = folder, rank
        self._planned = TraceRequest(id=start, steps=steps, rank=rank, until=0.0) if steps else None
        self._steps = 0  # that have ended
        self._next_look = 0.0
        self._seen = (0, 0)  # file and time of the latest request that was looked at
        self._request: TraceRequest | None = None  # that is being answered
        self._profile: Any = None
        self._left = 0
        self._began = 0.0

    def step_ended(self) -> bool:
        """Goes on with what is asked for; whether the next step must not count, since this takes time.

        A trace that cannot be made is answered with the reason, and the job goes on.
        """
        self._steps += 1
        if self._request is not None:
            self._left -= 1
            if self._left == 0:
                self._finish(self._request)
            return True
        request = self._due() or self._new_request()
        if request is None:
            return False
        self._request = request
        self._left = request.steps
        try:
            self._begin()
        except Exception as error:  # the script has a profiler of its own at work
            self._give_up(request, error)
        return True

    def _due(self) -> TraceRequest | None:
        """The planned request, once, when its first step is the next one; or later, where another trace was in the way."""
        request = self._planned
        if request is None or self._steps < request.id:
            return None
        self._planned = None
        return request if answered(self._folder, request) is None else None  # by an earlier life of this rank

    def _new_request(self) -> TraceRequest | None:
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + LOOK_SECONDS
        try:
            found = os.stat(f"{self._folder}/{REQUEST}")
        except OSError:
            return None
        if self._seen == (found.st_ino, found.st_mtime_ns):
            return None
        self._seen = (found.st_ino, found.st_mtime_ns)
        request = asked(self._folder)
        if request is None or request.rank != self._rank or time.time() > request.until:
            return None
        return request if answered(self._folder, request) is None else None  # by an earlier life of this rank

    def _begin(self) -> None:
        profiler = sys.modules["torch"].profiler
        self._profile = profiler.profile(record_shapes=False, with_stack=False)  # all activities that this machine has
        self._profile.start()
        self._began = time.perf_counter()

    def _finish(self, request: TraceRequest) -> None:
        profile, self._profile = self._profile, None
        try:
            seconds = time.perf_counter() - self._began
            profile.stop()
            os.makedirs(f"{self._folder}/{FOLDER}", exist_ok=True)
            profile.export_chrome_trace(trace_path(self._folder, request))
            answer(self._folder, request, TraceResult(seconds, operators_of(profile), busy_of(profile, seconds)))
            self._request = None
        except Exception as error:
            self._give_up(request, error)

    def _give_up(self, request: TraceRequest, error: Exception) -> None:
        self._request = self._profile = None
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        try:
            answer(self._folder, request, TraceResult(error=reason[:1000]))
        except OSError:  # who asked finds no answer in time, and says so
            pass


def operators_of(profile: Any) -> tuple[Operator, ...]:
    """The operators that took most time of their own, on the device where one is used, else on the CPU."""
    found = [
        Operator(
            name=str(one.key)[:200],
            calls=int(one.count),
            cpu=one.self_cpu_time_total / 1e6,
            device=(getattr(one, "self_device_time_total", 0.0) or 0.0) / 1e6,
        )
        for one in profile.key_averages()
    ]
    by_device = any(one.device > 0 for one in found)
    found.sort(key=lambda one: one.device if by_device else one.cpu, reverse=True)
    return tuple(found[:MOST_OPERATORS])


def busy_of(profile: Any, seconds: float) -> float | None:
    """In which part of the time an operator ran: on the device where there is one, else on the CPU; None if unknown."""
    events = list(profile.events())
    on_device = [event for event in events if not str(event.device_type).endswith("CPU")]
    spans = sorted((event.time_range.start, event.time_range.end) for event in on_device or events)
    if not spans or seconds <= 0:
        return None
    busy, end = 0.0, spans[0][0]
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return min(1.0, busy / 1e6 / seconds)
