"""Keeps a rank's pace file up to date (observe.pace): collects its steps into blocks, and tells of the last of these."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque

from trainshed.base.record import Record

from ..pace import KEPT, Pace, own_part, write_pace
from ..steps import PHASES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .segments import Step

LEAST_STEPS, LEAST_SECONDS = 8, 0.5  # of a block


class _Block(Record):
    """A block's steps on average: phases, and what is a rank's own, in seconds. The others as in `Pace`."""

    own: float
    phases: dict[str, float]
    cpu: float
    queued: float | None


class Pacing:
    """One rank's pace. A disk that is full costs the file, and nothing else: the windows' file says so.

    Args:
        folder: the profiler's.
        facts: of this rank: `Rank`, `World`, `Local`, `Host`.
        queued: seconds for which this process's first thread has waited for a CPU so far, None where nobody knows.
    """

    def __init__(
        self, folder: str, facts: dict[str, Any], queued: Callable[[], float | None] = lambda: waited_for_cpu()
    ) -> None:
        self._folder, self._facts, self._queued = folder, facts, queued
        self._pid = os.getpid()
        self._blocks: deque[_Block] = deque(maxlen=KEPT)
        self._count = self._step = 0
        self._begin()

    def _begin(self) -> None:
        self._steps, self._seconds = 0, 0.0
        self._sums: dict[str, float] = {}
        self._cpu, self._before = time.process_time(), self._queued()

    def add(self, step: Step) -> None:
        """One more step."""
        self._step += 1
        self._steps += 1
        self._seconds += step.seconds
        for name, seconds in step.phases.items():
            self._sums[name] = self._sums.get(name, 0.0) + seconds
        if self._steps >= LEAST_STEPS and self._seconds >= LEAST_SECONDS:
            self._end_block()

    def _end_block(self) -> None:
        phases = {name: self._sums.get(name, 0.0) / self._steps for name in PHASES[:-1]}
        length = self._seconds / self._steps
        phases["rest"] = max(0.0, length - sum(phases.values()))
        now = self._queued()
        queued = None if now is None or self._before is None else (now - self._before) / self._steps
        cpu = (time.process_time() - self._cpu) / self._steps
        self._blocks.append(_Block(own_part(phases, length), phases, cpu, queued))
        self._count += 1
        self._begin()
        if os.getpid() == self._pid:
            try:
                write_pace(self._folder, self._pace())
            except OSError:
                pass

    def _pace(self) -> Pace:
        blocks = self._blocks
        waits = [block.queued for block in blocks if block.queued is not None]
        return Pace(
            rank=self._facts["Rank"],
            world=self._facts["World"],
            pid=self._pid,
            host=self._facts["Host"],
            local=self._facts["Local"],
            step=self._step,
            blocks=self._count,
            own=tuple(round(block.own, 7) for block in blocks),
            phases={name: round(statistics.median(block.phases[name] for block in blocks), 7) for name in PHASES},
            cpu=round(statistics.fmean(block.cpu for block in blocks), 7),
            queued=round(statistics.fmean(waits), 7) if waits else None,
        )


def waited_for_cpu() -> float | None:
    """Seconds for which this process's first thread stood in a queue for a CPU: the second number of /proc/PID/schedstat
    (Linux's Documentation/scheduler/sched-stats), in nanoseconds. None where the kernel does not count them.
    """
    try:
        with open("/proc/self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
