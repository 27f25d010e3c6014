"""From a long curve to what a picture of it can show, without hiding anything: the least and the most of each part.

Taking every n-th point would lose spikes; taking means would lose them, too. Numbers that are not finite break the line and
are told apart.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    # Where a number is not finite: "NaN", "inf" or "-inf", the first place of a part, and how many there are in it.
    Odd = tuple[float, str, int]


class Thin(Record):
    """A curve of few points.

    points: (x, y) in their order; y is None where the line breaks.
    means: for each point the mean of the values of its part, () where every value is a point. What is smoothed, or summed up
        over runs, is made of them: the middle between the least and the most leans to where the spikes are.
    odd: numbers that are not finite.
    count: how many values it stands for.
    whole: whether nothing was left out.
    """

    points: tuple[tuple[float, float | None], ...]
    means: tuple[float | None, ...] = ()
    odd: tuple[tuple[float, str, int], ...] = ()
    count: int = 0
    whole: bool = True


def thin(xs: Sequence[float], values: Sequence[float], parts: int, low: float = -math.inf, high: float = math.inf) -> Thin:
    """At most `2 * parts` points of a curve between `low` and `high`, its least and greatest values among them.

    Args:
        xs: where the values were measured, never falling.
    """
    first, end = bisect_left(xs, low), bisect_right(xs, high)
    first, end = max(0, first - 1), min(len(xs), end + 1)  # the line goes on beyond the edge
    count = end - first
    if count <= 0:
        return Thin(())
    if count <= 2 * parts:
        return _every(xs, values, first, end)
    left, span = xs[first], xs[end - 1] - xs[first]
    points: list[tuple[float, float | None]] = []
    means: list[float | None] = []
    odd: list[Odd] = []
    start = first
    for part in range(parts):
        edge = left + span * (part + 1) / parts
        stop = end if part == parts - 1 else bisect_right(xs, edge, start, end)
        if stop > start:
            mean = _part(xs, values, start, stop, points, odd)
            means += [mean if y is not None else None for _, y in points[len(means) :]]
        start = stop
    return Thin(tuple(points), tuple(means), tuple(odd), count, False)


def _every(xs: Sequence[float], values: Sequence[float], first: int, end: int) -> Thin:
    points: list[tuple[float, float | None]] = []
    odd: list[Odd] = []
    for index in range(first, end):
        value = values[index]
        if value - value == 0:
            points.append((xs[index], value))
        else:
            points.append((xs[index], None))
            odd.append((xs[index], _kind(value), 1))
    return Thin(tuple(points), (), tuple(odd), end - first)


def _part(
    xs: Sequence[float], values: Sequence[float], start: int, stop: int, points: list[tuple[float, float | None]],
    odd: list[Odd],
) -> float | None:  # fmt: skip
    """Adds the points of a part; the mean of its finite values."""
    part = values[start:stop]
    total = sum(part)
    if total - total == 0:
        places = {part.index(min(part)), part.index(max(part))}
        points += [(xs[start + index], part[index]) for index in sorted(places)]
        return total / len(part)
    finite = [index for index, value in enumerate(part) if value - value == 0]
    if finite:
        places = {min(finite, key=part.__getitem__), max(finite, key=part.__getitem__)}
        points += [(xs[start + index], part[index]) for index in sorted(places)]
    mean = sum(part[index] / len(finite) for index in finite) if finite else None
    if len(finite) == len(part):  # their sum alone is too large
        return mean
    points.append((xs[stop - 1], None))
    held = set(finite)
    kinds: dict[str, list[int]] = {}
    for index in range(len(part)):
        if index not in held:
            kinds.setdefault(_kind(part[index]), []).append(index)
    odd += [(xs[start + found[0]], kind, len(found)) for kind, found in kinds.items()]
    return mean


def _kind(value: float) -> str:
    return "NaN" if value != value else "inf" if value > 0 else "-inf"
