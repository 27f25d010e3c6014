"""Which running trials are not worth their end: the platform's median rule, and ASHA.

A curve is what a trial has measured of the objective: (resource, value) in their order. The resource
grows: a step, an epoch, or the number of the value.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from .tuning import EarlyStopping, Objective

Curve = Sequence[tuple[float, float]]


def running_average(curve: Curve, resource: float) -> float | None:
    """The mean of a curve's values up to a resource; None where it does not reach that far. NaN does not count."""
    if not curve or curve[-1][0] < resource:
        return None
    values = [value for place, value in curve if place <= resource and value == value]
    return sum(values) / len(values) if values else None


def median_stops(point: tuple[float, float], earlier: Iterable[Curve], objective: Objective) -> str:
    """Why a trial that has just measured a point is stopped; "" where it goes on.

    The platform's rule: it is stopped if the objective is worse than the median of the running averages of the objective of
    the earlier jobs up to the same point. Earlier jobs that did not get so far are left out. NaN is worse than any number.
    Source: SageMaker's developer guide, "How early stopping works".
    """
    resource, value = point
    averages = [mean for curve in earlier if (mean := running_average(curve, resource)) is not None]
    if not averages:
        return ""
    median = statistics.median(averages)
    if value == value and not objective.better(median, value):
        return ""
    return f"median rule: {_short(value)} at {_short(resource)} is worse than {_short(median)}"


def rungs(early: EarlyStopping, bracket: int) -> list[float]:
    """The resources at which trials of a bracket are compared; without an upper end the first thirty."""
    found: list[float] = []
    rung = float(early.least * early.factor**bracket)
    while (not early.most or rung < early.most) and len(found) < 30:
        found.append(rung)
        rung *= early.factor
    return found


def bracket_of(number: int, early: EarlyStopping) -> int:
    """The bracket of a trial: in turn, those that compare early getting most trials, as in Hyperband.

    Of brackets 0 to S, bracket b stands for s = S - b in the paper, and gets ceil((S + 1) / (s + 1) * factor^s) parts.
    Source: Li et al., Hyperband, JMLR 18 (2018).
    """
    last = early.brackets - 1
    parts = [-(-(last + 1) * early.factor ** (last - bracket) // (last - bracket + 1)) for bracket in range(early.brackets)]
    place = (number - 1) % sum(parts)
    for bracket, part in enumerate(parts):
        if place < part:
            return bracket
        place -= part
    raise AssertionError


def reached(curve: Curve, rung: float) -> float | None:
    """The value with which a curve came to a rung; None where it has not."""
    return next((value for resource, value in curve if resource >= rung), None)


def asha_stops(number: int, rung: float, curves: Mapping[int, Curve], early: EarlyStopping, objective: Objective) -> str:
    """Why a trial that has just reached a rung is stopped; "" where it is among the best 1/factor there, or the best.

    Args:
        curves: of all trials of its bracket that have started, by number; its own too.
    """
    values = [value for curve in curves.values() if (value := reached(curve, rung)) is not None]
    own = reached(curves[number], rung)
    if own is None:
        return ""
    kept = max(1, len(values) // early.factor)
    better = sum(1 for value in values if value == value and (own != own or objective.better(value, own)))
    if better < kept:
        return ""
    return f"asha: {_short(own)} at {_short(rung)} is not among the best {kept} of {len(values)}"


def _short(value: float) -> str:
    return "NaN" if value != value else f"{value:.4g}"
