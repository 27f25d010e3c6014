"""Axes: from numbers to places, and the round numbers at which an axis has its marks."""

from __future__ import annotations

import itertools
import math

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_CLOCK = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class Scale(Record):
    """One axis.

    low, high: the numbers at its ends. start, end: their places in pixels.
    log: whether equal distances are equal factors.
    ticks: (number, text) of its marks.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()

    def place(self, value: float) -> float:
        """Where a number is, in pixels."""
        if self.log:
            part = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            # Halved: the span of two huge numbers of different sign is not finite.
            part = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + part * (self.end - self.start)


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
    return Scale(low, high, start, end, False, tuple(zip(marks, labels(marks), strict=True)))


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """A logarithmic scale of positive numbers: marks at powers of ten, or at round numbers where there are few of those."""
    if high / low < 1.2:
        low, high = low / 1.1, high * 1.1
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    span = math.log10(high) - math.log10(low)
    if span >= 2.5:
        every = max(1, math.ceil(span / 5))
        exponents = [number for number in range(first, last + 1) if number % every == 0]
        marks = [10.0**number for number in exponents if low <= 10.0**number <= high]
        return Scale(low, high, start, end, True, tuple((mark, _power(mark)) for mark in marks))
    factors = (1, 2, 5) if span > 0.8 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    marks = [factor * 10.0**number for number in range(first - 1, last + 1) for factor in factors]
    marks = [mark for mark in marks if low <= mark <= high]
    if len(marks) < 3:
        return linear(low, high, start, end, about=4, tight=True).replace(log=True)
    return Scale(low, high, start, end, True, tuple((mark, short(mark)) for mark in marks))


def elapsed(low: float, high: float, start: float, end: float, about: int = 6) -> Scale:
    """A scale of seconds with marks at round minutes and hours."""
    high = max(high, low + 1e-3)
    wanted = (high - low) / about
    if wanted < 1:
        return linear(low, high, start, end, about=about, tight=True)
    step = next((step for step in _CLOCK if step >= wanted), 86400.0 * math.ceil(wanted / 86400))
    marks = [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return Scale(low, high, start, end, False, tuple((mark, clock(mark, step)) for mark in marks))


def clock(seconds: float, step: float = 1) -> str:
    """`45 s`, `2:30`, `1:02:00`; with days beyond that. step: the distance of marks."""
    whole = round(seconds)
    if not whole:
        return "0"
    if whole >= 86400 and step >= 3600:
        return f"{whole // 86400} d {whole % 86400 // 3600} h" if whole % 86400 else f"{whole // 86400} d"
    if step >= 3600:
        return f"{whole // 3600} h"
    if whole >= 3600:
        return (
            f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
            if step < 60
            else f"{whole // 3600}:{whole % 3600 // 60:02d} h"
        )
    if whole >= 60 or step >= 60:
        return f"{whole // 60}:{whole % 60:02d}" if step < 60 else f"{whole // 60} min"
    return f"{whole} s"


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


def short(value: float) -> str:
    """A number for a legend: four digits that count."""
    if value != value:
        return "NaN"
    if value - value != 0:
        return "inf" if value > 0 else "-inf"
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e+")
    return f"{value:.4g}"


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


def _power(value: float) -> str:
    exponent = round(math.log10(value))
    return short(value) if -3 <= exponent <= 4 else f"1e{exponent}"
