"""One trial: the values it has been given, and what has become of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainshed.studio.batches.folder import COMPLETED, FAILED, IN_PROGRESS, STOPPED

from .tuning import Objective

ENDED = (COMPLETED, FAILED, STOPPED)
LATEST = 1e11  # seconds since the epoch that a year of four digits has


@dataclass(frozen=True)
class Trial:
    """What is kept of a trial.

    number: from 1. values: texts by name of the hyperparameter.
    state: of TrainingJobStatus. created, ended: seconds since the epoch; ended is 0 while it runs.
    slot: which part of the machine it has, from 0.
    value: the objective, None where there is none. further: those after the first one, where there are several.
    reason: why it failed, or was stopped.
    halt: why the tuner stops it before its end; written before it is asked to stop.
    paused: whether the tuner was stopped, and the trial with it, or the disk was full: it goes on when the tuner does.
    retries: how often the tuner has started it again after its runner was killed.
    seconds: billable ones, all hosts together.
    parent: of a population: the trial whose checkpoint it goes on from, 0 for none.
    """

    number: int
    values: dict[str, str]
    state: str = IN_PROGRESS
    created: float = 0.0
    ended: float = 0.0
    slot: int = 0
    value: float | None = None
    reason: str = ""
    halt: str = ""
    paused: bool = False
    retries: int = 0
    seconds: float = 0.0
    further: tuple[float, ...] = ()
    parent: int = 0

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in ENDED

    def plain(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "further": list(self.further)}


def trial_of(data: Any, number: int) -> Trial | None:
    """A trial from what `plain` and JSON have made of it; None where it is none: anybody may have written that."""
    kinds: dict[str, Any] = {
        "number": int, "values": dict, "state": str, "created": (int, float), "ended": (int, float), "slot": int,
        "value": (int, float, type(None)), "reason": str, "halt": str, "paused": bool, "retries": int,
        "seconds": (int, float),
    }  # fmt: skip
    if not isinstance(data, dict):
        return None
    data = dict(data)
    further, parent = data.pop("further", []), data.pop("parent", 0)
    if type(parent) is not int or not 0 <= parent < max(1, number):
        return None
    if data.keys() != kinds.keys() or not isinstance(further, list):
        return None
    if not all(type(one) in (int, float) and abs(one) < float("inf") for one in further):
        return None
    if any(
        not isinstance(data[name], kind) or isinstance(data[name], bool) != (kind is bool) for name, kind in kinds.items()
    ):
        return None
    texts = all(isinstance(text, str) for pair in data["values"].items() for text in pair)
    times = all(0 <= data[name] < LATEST for name in ("created", "ended", "seconds"))
    value = data["value"]
    if not texts or not times or data["number"] != number or data["state"] not in (IN_PROGRESS, *ENDED):
        return None
    if (value is not None and not abs(value) < float("inf")) or data["slot"] < 0 or data["retries"] < 0:
        return None
    return Trial(**data, further=tuple(further), parent=parent)


def losses(trial: Trial, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """The objectives of a trial as numbers to be made small; None where it has not ended with all of them."""
    if not trial.over or trial.value is None or len(trial.further) != len(objectives) - 1:
        return None
    return tuple(one.loss(value) for one, value in zip(objectives, (trial.value, *trial.further), strict=True))


def best_of(trials: Iterable[Trial], objectives: Sequence[Objective]) -> Trial | None:
    """The trial with the best first objective of those that have ended; among equals the next objective decides, then the
    number."""
    found = [(told, trial.number, trial) for trial in trials if (told := losses(trial, objectives)) is not None]
    return min(found, key=lambda one: one[:2])[2] if found else None


def front_of(trials: Iterable[Trial], objectives: Sequence[Objective]) -> list[Trial]:
    """The Pareto front, by number: the trials that no other one beats in an objective without being worse in another."""
    found = sorted((told, trial.number, trial) for trial in trials if (told := losses(trial, objectives)) is not None)
    front: list[tuple[tuple[float, ...], Trial]] = []
    for told, _, trial in found:  # one that beats another comes before it
        if not any(_beats(other, told) for other, _ in front):
            front.append((told, trial))
    return sorted((trial for _, trial in front), key=lambda trial: trial.number)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(left <= right for left, right in zip(one, other, strict=True))


def since_best(trials: Iterable[Trial], objectives: Sequence[Objective]) -> int:
    """How many trials with objectives have ended since one was better than all before it; with several objectives since one
    was beaten by none of those."""
    found = sorted((trial for trial in trials if trial.over), key=lambda trial: (trial.ended, trial.number))
    front: list[tuple[float, ...]] = []
    count = 0
    for trial in found:
        told = losses(trial, objectives)
        if told is None:
            continue
        if any(_beats(other, told) or other == told for other in front):
            count += 1
        else:
            front, count = [*(other for other in front if not _beats(told, other)), told], 0
    return count


def elapsed(trials: Iterable[Trial], now: float) -> float:
    """Seconds in which at least one trial was there: a tuner that does not run uses up no time."""
    spans = sorted((trial.created, trial.ended if trial.over else now) for trial in trials)
    total = reached = 0.0
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
