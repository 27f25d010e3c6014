"""Axes of pictures that are drawn here: from numbers to places, and the round numbers at which an axis has its marks."""

from __future__ import annotations

import itertools
import math

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class Scale(Record):
    """One axis.

    low, high: the numbers at its ends. start, end: their places in pixels.
    ticks: (number, text) of its marks.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...] = ()

    def place(self, value: float) -> float:
        """Where a number is, in pixels."""
        # Halved: the span of two huge numbers of different sign is not finite.
        return self.start + (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2) * (self.end - self.start)


def linear(low: float, high: float, start: float, end: float, *, about: int = 5, tight: bool = False) -> Scale:
    """A scale with round marks.

    Args:
        about: how many marks there should be.
        tight: the axis ends where the numbers do, not at a mark.
    """
    low, high = _apart(low, high)
    step = _round_step((high / about) - (low / about))
    first, last = math.floor(low / step), math.ceil(high / step)
    if not tight:
        low, high = first * step, last * step
    marks = [number * step for number in range(first, last + 1) if low - step * 1e-9 <= number * step <= high + step * 1e-9]
    return Scale(low, high, start, end, tuple(zip(marks, labels(marks), strict=True)))


def labels(marks: Sequence[float]) -> list[str]:
    """The marks' texts, all with the same number of digits."""
    most = max((abs(mark) for mark in marks), default=0.0)
    step = min((b - a for a, b in itertools.pairwise(marks)), default=most) or 1.0
    if most == 0:
        return ["0" for _ in marks]
    if most >= 1e15 or most < 1e-4 or step < 1e-7:
        digits = min(12, max(0, math.floor(math.log10(most)) - math.floor(math.log10(step) + 1e-9)))
        return ["0" if mark == 0 else f"{mark:.{digits}e}".replace("e-0", "e-").replace("e+0", "e+") for mark in marks]
    unit, prefix = next(((unit, prefix) for unit, prefix in _PREFIXES if most >= 10 * unit or most == unit), (1.0, ""))
    if most < 1e4:
        unit, prefix = 1.0, ""
    scaled = step / unit
    digits = max(0, -math.floor(math.log10(scaled) + 1e-9))
    if round(scaled, digits) != round(scaled, digits + 1):  # 2.5
        digits += 1
    return [f"{mark / unit:.{digits}f}{prefix if mark else ''}" if mark else "0" for mark in marks]


def _apart(low: float, high: float) -> tuple[float, float]:
    if high > low and high / 2 - low / 2 > abs(high) * 1e-12:
        return low, high
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def _round_step(wanted: float) -> float:
    if not wanted > 0 or wanted - wanted != 0:
        return 1.0
    exponent = math.floor(math.log10(wanted))
    base: float = 10.0**exponent
    if base == 0:
        return wanted
    return next(factor * base for factor in (1, 2, 2.5, 5, 10) if factor * base >= wanted * 0.999)
