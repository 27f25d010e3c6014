"""What goodput to expect of a job that is interrupted, and what would raise it: a closed formula. Pure.

Interruptions come at random, independently of each other, at rate 1/M. A job works for an interval t and stands still for C
while it saves. When it is interrupted it goes back to its last checkpoint, which takes R and may itself be interrupted. The
time that passes until one interval is saved is then M exp(R/M) (exp((t+C)/M) - 1) on average (J. T. Daly, FGCS 22, 2006);
goodput is t over that. The best t depends on C and M alone.
"""

from __future__ import annotations

import math

from trainshed.base.record import Record

_STEPS = 100  # of a search, each of which takes more than a third off
_GOLDEN = (math.sqrt(5) - 1) / 2
_LARGEST = 500.0  # exponents beyond it mean that the job never comes to an end
MEMORY_EVERY, MEMORY_STALL = 10.0, 0.05  # seconds: copies of the state in other hosts' memory, and what one costs
WARM = 2.0  # seconds from an interruption to the next step, with warm starts


class Case(Record):
    """A job's circumstances, in seconds.

    between: mean time between interruptions of the whole job.
    stall: that it stands still for a checkpoint.
    restart: from an interruption to the next step, waiting for capacity included.
    interval: between checkpoints; 0 for the best one.
    memory: seconds between copies in other hosts' memory, from which it goes on; 0 for none. memory_stall: what one costs.
    """

    between: float
    stall: float
    restart: float
    interval: float = 0.0
    memory: float = 0.0
    memory_stall: float = MEMORY_STALL


class Expected(Record):
    """What to expect: parts of the wall clock that add up to 1. interval: between checkpoints, in seconds."""

    interval: float
    goodput: float
    again: float
    stalled: float
    restarting: float


def expected(case: Case) -> Expected:
    """What a case comes to."""
    if case.memory:
        return _from_memory(case)
    interval = case.interval or best_interval(case)
    return _parts(case, interval, interval, case.stall)


def _from_memory(case: Case) -> Expected:
    """Lost is what came after the last copy; checkpoints are made all the same, as often as without copies."""
    interval = case.interval or best_interval(case)
    return _parts(case, interval, case.memory, case.memory_stall + case.stall * case.memory / interval)


def _parts(case: Case, interval: float, worked: float, stalled: float) -> Expected:
    """worked, stalled: of the stretch that is lost as a whole or not at all."""
    length, rate = worked + stalled, 1.0 / case.between
    if max(length, case.restart) * rate > _LARGEST:
        return Expected(interval, 0.0, 0.0, 0.0, 1.0)
    tries = math.expm1(length * rate)  # interruptions of work until one stretch is whole
    again = tries / rate - length
    restarting = tries * math.expm1(case.restart * rate) / rate
    total = length + again + restarting
    return Expected(interval, worked / total, again / total, stalled / total, restarting / total)


def best_interval(case: Case) -> float:
    """The interval with the highest goodput, in seconds: a golden-section search over the formula."""
    plain = case.replace(memory=0.0)
    low, high = math.log(1e-3), math.log(100.0 * max(case.between, case.stall))
    for _ in range(_STEPS):
        first, second = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if _goodput(plain, math.exp(first)) < _goodput(plain, math.exp(second)):
            low = first
        else:
            high = second
    return math.exp((low + high) / 2)


def _goodput(case: Case, interval: float) -> float:
    """Without what starting again takes, which does not change where the best interval is."""
    if (interval + case.stall) / case.between > _LARGEST:
        return -interval
    return interval / case.between / math.expm1((interval + case.stall) / case.between)


def measures(case: Case) -> list[tuple[str, Case]]:
    """The case itself, and with each measure alone and all together."""
    best = case.replace(interval=0.0)
    quick, light = case.replace(restart=min(case.restart, WARM)), best.replace(stall=case.stall / 10)
    copies = case.replace(memory=MEMORY_EVERY)
    every = light.replace(restart=quick.restart, memory=MEMORY_EVERY)
    return [
        ("as it is", case),
        *([("the best interval", best)] if case.interval else []),
        ("a tenth of the stall, and the best interval", light),
        ("starting again twice as fast", case.replace(restart=case.restart / 2)),
        (f"warm starts: {WARM:g} s to start again", quick),
        (f"copies in memory every {MEMORY_EVERY:g} s", copies),
        ("half as many interruptions", case.replace(between=2 * case.between)),
        ("stall, warm starts and copies together", every),
    ]
