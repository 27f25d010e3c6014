"""A job that is interrupted, played as discrete events: what `forecast` averages, and hosts that are lost. Pure.

Time passes from event to event: an interruption, a host that is lost and its replacement. What lies between two of them is
reckoned at once, so that a month of 16,000 hosts takes milliseconds. Replayed with the interruptions of a real job, it tells
what that job should have come to.
"""

from __future__ import annotations

import heapq
import math
import random

from trainshed.base.record import Record

from .forecast import Case, Expected, best_interval

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Fleet(Record):
    """Hosts that run a job.

    case: the job's circumstances.
    hosts: of the job. lost: the share of interruptions that take a host away; the others end processes alone.
    copies: hosts beside its own that keep a host's state, where the case has copies in memory.
    spares: hosts that wait.
    replaced_in: seconds from the loss of a host to its replacement, which becomes a spare where one took the host's place.
    """

    case: Case
    hosts: int = 1
    lost: float = 0.0
    copies: int = 1
    spares: int = 0
    replaced_in: float = 0.0


def simulated(fleet: Fleet, seconds: float, seed: int = 1) -> Expected:
    """One job of so many seconds, with interruptions at random moments."""
    chance = random.Random(seed)
    return replayed(fleet, seconds, _at_random(fleet.case.between, chance), chance)


def spread(fleet: Fleet, seconds: float, jobs: int = 100) -> tuple[float, float]:
    """The goodputs between which nine of ten jobs of so many seconds lie."""
    found = sorted(simulated(fleet, seconds, seed).goodput for seed in range(jobs))
    return found[jobs // 20], found[-1 - jobs // 20]


def replayed(fleet: Fleet, seconds: float, failures: Iterable[float], chance: random.Random | None = None) -> Expected:
    """One job whose interruptions are known.

    Args:
        failures: when they come, in seconds after the first step began, in ascending order.
        chance: which hosts are lost.
    """
    play = _Play(fleet, seconds, iter(failures), chance or random.Random(1))
    while play.now < seconds:
        play.live()
        play.start_again()
    return play.result()


def _at_random(between: float, chance: random.Random) -> Iterator[float]:
    now = 0.0
    while True:
        now += chance.expovariate(1 / between)
        yield now


class _Play:
    """Where a job stands. saved: seconds of work that an interruption leaves. ready: when hosts beside it are there."""

    def __init__(self, fleet: Fleet, seconds: float, failures: Iterator[float], chance: random.Random) -> None:
        case = fleet.case
        self.fleet, self.seconds, self.failures, self.chance = fleet, seconds, failures, chance
        self.interval = case.interval or best_interval(case)
        self.worked = case.memory or self.interval
        self.stall = case.memory_stall + case.stall * case.memory / self.interval if case.memory else case.stall
        self.now = self.saved = self.again = self.stalled = self.restarting = 0.0
        self.due = next(failures, math.inf)
        self.ready = [0.0] * fleet.spares

    def live(self) -> None:
        """Steps and saves until the next interruption, or the end."""
        end = min(self.due, self.seconds)
        whole, rest = divmod(end - self.now, self.worked + self.stall)
        self.saved += whole * self.worked
        self.stalled += whole * self.stall
        if self.due >= self.seconds:
            self.saved += min(rest, self.worked)
            self.stalled += max(0.0, rest - self.worked)
        else:
            self.again += rest
        self.now = end

    def start_again(self) -> None:
        """From an interruption to the next step; others may come meanwhile."""
        if self.now >= self.seconds:
            return
        begin, back, gone = self.now, self.now, {-1}
        while self.due <= min(back, self.seconds):
            begin = max(begin, self.due, self._replacement(gone))
            back = begin + self.fleet.case.restart
            self.due = next(self.failures, math.inf)
        self._go_back(gone)
        end = min(back, self.seconds)
        self.restarting += end - self.now
        self.now = end

    def _replacement(self, gone: set[int]) -> float:
        """When the interruption that is due leaves the job its number of hosts again."""
        if self.chance.random() >= self.fleet.lost:
            return 0.0
        gone.add(self.chance.randrange(self.fleet.hosts))
        heapq.heappush(self.ready, self.due + self.fleet.replaced_in)
        return heapq.heappop(self.ready)

    def _go_back(self, gone: set[int]) -> None:
        """To the checkpoint on disk, where a host is gone with all that keep its state."""
        fleet = self.fleet
        if fleet.case.memory and any(
            {(host + more) % fleet.hosts for more in range(fleet.copies + 1)} <= gone for host in gone if host >= 0
        ):
            behind = self.saved % self.interval
            self.saved -= behind
            self.again += behind

    def result(self) -> Expected:
        """Parts of the wall clock, which add up to 1."""
        parts = (self.saved, self.again, self.stalled, self.restarting)
        return Expected(self.interval, *(part / self.seconds for part in parts))
