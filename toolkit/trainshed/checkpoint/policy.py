"""When to save: after a number of steps, after a number of seconds, or at a measured interval (Young and Daly).

Young's interval sqrt(2 C M) minimises lost time for a cost C of one checkpoint and a mean time M between interruptions
(J. W. Young, CACM 17(9), 1974); Daly's first-order one is sqrt(2 C (M + R)) - C for R to start again (J. T. Daly, FGCS 22,
2006). C and R are measured as the job runs, M from how often it was interrupted so far, unless the job gives it.
"""

from __future__ import annotations

import math

from trainshed.base.record import Record
from trainshed.base.units import duration
from trainshed.contract.wire.checkpoint_every import SHORTEST, Every

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PRIOR_SECONDS = 2 * 3600.0  # assumed at first: one interruption in two hours, as is common on spot capacity
SAID_AGAIN = 1.5  # times as long or as short an interval is told again
MOST_WRITING = 0.5  # share of the time that the disk may be writing checkpoints


class History(Record):
    """Facts that a checkpoint hands to the next run: seconds trained in all runs so far, and how many were interrupted."""

    trained: float = 0.0
    interruptions: int = 0

    @staticmethod
    def of(run: dict[str, Any]) -> History:
        """From a manifest's `run`."""
        trained, interruptions = run.get("trained", 0), run.get("interruptions", 0)
        if not (isinstance(trained, (int, float)) and isinstance(interruptions, int)):
            return History()
        if not (0 <= trained < 1e11 and 0 <= interruptions < 1e9):  # no count of ours
            return History()
        return History(trained=float(trained), interruptions=int(interruptions))

    @property
    def mean_seconds_between(self) -> float:
        """The mean time between interruptions, the prior counted as one more of them."""
        return (self.trained + PRIOR_SECONDS) / (self.interruptions + 1)


def young(cost: float, mean_seconds_between: float) -> float:
    """The interval in seconds for a checkpoint's cost in seconds."""
    return math.sqrt(2.0 * max(cost, 1e-6) * mean_seconds_between)


def daly(cost: float, mean_seconds_between: float, restart: float) -> float:
    """The same with the seconds that starting again takes; at least the cost itself."""
    return max(young(cost, mean_seconds_between + restart) - cost, cost)


class Policy:
    """Decides from the number of steps and the clock; each run has a new one.

    Args:
        every_steps, every_seconds: fixed intervals; with neither, the interval is found by measurement.
        every: bounds of what is measured; where the job asks for it, it wins over both.
    """

    def __init__(
        self, every_steps: int | None, every_seconds: float | None, now: float, history: History, every: Every | None = None
    ) -> None:
        if every_steps is not None and every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, not {every_steps}")
        if every_seconds is not None and not every_seconds > 0:
            raise ValueError(f"every_seconds must be above 0, not {every_seconds}")
        self.every = every or Every()
        self.every_steps = None if self.every.asked else every_steps
        self.every_seconds = None if self.every.asked else every_seconds
        self.history = history
        self.restart = 0.0  # seconds from the start of the process to its first step
        self._said = 0.0  # the interval that was told last
        self.last = self.started = now
        self.stall = 0.0  # seconds that the loop stood still for the last checkpoint
        self.write = 0.0  # seconds until the last one was durable
        self._idle = _Mean()  # seconds a step, while nothing is being written
        self._writing = _Mean()  # and meanwhile
        self._steps_meanwhile = 0

    def stepped(self, seconds: float, writing: bool) -> None:
        """Records the duration of one step; `writing` if a snapshot was being written meanwhile."""
        (self._writing if writing else self._idle).add(seconds)
        self._steps_meanwhile += writing

    def saved(self, now: float, stall: float) -> None:
        """Records that the loop goes on after a snapshot, for which it stood still `stall` seconds."""
        self.last = now
        self.stall = stall
        self._steps_meanwhile = 0

    def written(self, seconds: float) -> None:
        """Records that the snapshot has become durable after so many seconds."""
        self.write = seconds

    @property
    def cost(self) -> float:
        """Seconds that one checkpoint costs the loop: the stall, and by how much steps are slower meanwhile."""
        slower = max(0.0, self._writing.value - self._idle.value) if self._writing.count and self._idle.count else 0.0
        return self.stall + slower * self._steps_meanwhile

    def interval(self, now: float) -> float:
        """Seconds between checkpoints; infinite where steps alone decide."""
        if self.every_seconds is not None:
            return self.every_seconds
        if self.every_steps is not None:
            return math.inf
        if not self.stall:
            return min(SHORTEST, self.every.most)  # the first one, soon: it is how the cost becomes known
        best = daly(self.cost, self.between(now), self.restart)
        return min(max(best, self.write / MOST_WRITING, self.every.least), self.every.most)

    def between(self, now: float) -> float:
        """The mean time between interruptions, in seconds: as given, else as observed."""
        return self.every.between or self.so_far(now).mean_seconds_between

    def choice(self, now: float) -> str:
        """What was chosen and why, where the job asks for it and the interval is another one than was told; else ""."""
        if not (self.every.asked and self.stall):
            return ""
        interval = self.interval(now)
        if self._said / SAID_AGAIN <= interval <= self._said * SAID_AGAIN:
            return ""
        self._said = interval
        source = "as given" if self.every.between else f"{self.history.interruptions} so far, one in 2 h assumed before"
        return (
            f"a checkpoint every {duration(interval)}: one costs {duration(self.cost)}, starting again takes "
            f"{duration(self.restart)}, {duration(self.between(now))} lie between interruptions ({source})"
        )

    def due(self, now: float) -> bool:
        """Returns whether a save is due by the clock."""
        return now - self.last >= self.interval(now)

    def step_due(self, step: int) -> bool:
        """Returns whether a save is due at this step."""
        return self.every_steps is not None and step % self.every_steps == 0

    def so_far(self, now: float) -> History:
        """The history with this run's time."""
        return self.history.replace(trained=self.history.trained + now - self.started)

    @property
    def step_seconds(self) -> float:
        """The usual length of a step, in seconds."""
        return self._idle.value or self._writing.value


class _Mean:
    """A moving mean that follows changes within about twenty values."""

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) / min(self.count, 20)
