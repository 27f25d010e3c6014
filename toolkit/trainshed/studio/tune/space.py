"""The search space: what values each hyperparameter may have, on which scale, and on what it depends.

A value is a text, as the script gets it: `0.003`, `8`, `adam`. A number between 0 and 1 stands for each value of a range;
equal distances of these numbers are equal steps of the range's scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

CONTINUOUS, INTEGER, CATEGORICAL = "continuous", "integer", "categorical"
KINDS = (CONTINUOUS, INTEGER, CATEGORICAL)
AUTO, LINEAR, LOG, REVERSE_LOG = "auto", "linear", "log", "reverse_log"
SCALES = (AUTO, LINEAR, LOG, REVERSE_LOG)
LARGEST_GRID = 10_000  # combinations
_AUTO_LOG = 100.0  # from this ratio of its ends on, a range without a scale is searched on a logarithmic one

Values = Mapping[str, str]


@dataclass(frozen=True)
class Parameter:
    """One hyperparameter that is searched.

    low, high: both allowed; of categories, 0.
    scale: linear, log or reverse_log; `auto` has been decided.
    step: distance of the values, 0 where any value in the range is one.
    categories: (text, whether it was written as text: `"8"` is, `8` is not) of each.
    when: (name, texts) of the parameters that it depends on: it has a value only where each has one of these texts.
    """

    name: str
    kind: str
    low: float = 0.0
    high: float = 0.0
    scale: str = LINEAR
    step: str = ""
    categories: tuple[tuple[str, bool], ...] = ()
    when: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def active(self, values: Values) -> bool:
        """Whether it has a value beside these ones."""
        return all(values.get(name) in texts for name, texts in self.when)

    @property
    def texts(self) -> tuple[str, ...] | None:
        """All its values in order; None where they cannot be counted, or are more than `LARGEST_GRID`."""
        if self.kind == CATEGORICAL:
            return tuple(text for text, _ in self.categories)
        count = self.count
        return None if count is None else tuple(self.nth(number) for number in range(count))

    @property
    def count(self) -> int | None:
        """How many values it has; None where they cannot be counted, or are more than `LARGEST_GRID`."""
        if self.kind == CATEGORICAL:
            return len(self.categories)
        if not self.step:
            return None
        count = int((_decimal(self.high) - _decimal(self.low)) / Decimal(self.step)) + 1
        return count if count <= LARGEST_GRID else None

    def nth(self, number: int) -> str:
        """The value of this number, from 0: decimal arithmetic, so 0.1 and two steps of 0.1 are 0.3."""
        value = _decimal(self.low) + number * Decimal(self.step)
        return str(int(value)) if self.kind == INTEGER else spelled(float(value))

    def at(self, part: float) -> str:
        """The value at a number from 0 to 1."""
        part = min(max(part, 0.0), 1.0)
        if self.kind == CATEGORICAL:
            return self.categories[min(int(part * len(self.categories)), len(self.categories) - 1)][0]
        if self.step and self.scale == LINEAR and self.count:
            return self.nth(min(int(part * self.count), self.count - 1))
        if self.kind == INTEGER:  # each whole number has its place from half below to half above
            low, high = self.low - 0.5, self.high + 0.5
            return str(int(min(max(round(between(low, high, part, self.scale)), self.low), self.high)))
        return spelled(min(max(between(self.low, self.high, part, self.scale), self.low), self.high))

    def place(self, text: str) -> float | None:
        """The number from 0 to 1 that stands for a value; None for a value that it cannot have."""
        if self.kind == CATEGORICAL:
            texts = [known for known, _ in self.categories]
            return (texts.index(text) + 0.5) / len(texts) if text in texts else None
        try:
            value = float(text)
        except ValueError:
            return None
        if not self.low <= value <= self.high or (self.kind == INTEGER and value != int(value)):
            return None
        return part_of(self.low, self.high, value, self.scale)


def between(low: float, high: float, part: float, scale: str) -> float:
    """The value at a part of the way from low to high.

    reverse_log: logarithmic in the distance from 1, for momentums and the like; both ends must be below 1.
    """
    if scale == LOG:
        return math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
    if scale == REVERSE_LOG:
        return 1.0 - between(1.0 - low, 1.0 - high, part, LOG)
    return low + part * (high - low)


def part_of(low: float, high: float, value: float, scale: str) -> float:
    """The other way round: which part of the way from low to high a value is."""
    if high == low:
        return 0.5
    if scale == LOG:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    if scale == REVERSE_LOG:
        return part_of(1.0 - low, 1.0 - high, 1.0 - value, LOG)
    return (value - low) / (high - low)


def decided(scale: str, low: float, high: float) -> str:
    """The scale that `auto` stands for: logarithmic where the ends are positive and far apart."""
    if scale != AUTO:
        return scale
    return LOG if low > 0 and high / low >= _AUTO_LOG else LINEAR


def spelled(value: float) -> str:
    """A number as scripts and job files read it."""
    return repr(value + 0.0)  # -0.0 is 0.0


def grid(space: tuple[Parameter, ...]) -> Iterator[dict[str, str]]:
    """Every combination once, the last parameter changing fastest; one that is not active has no value.

    Raises:
        ValueError: a parameter has more values than can be counted.
    """
    yield from _grid(space, {})


def _grid(rest: tuple[Parameter, ...], values: dict[str, str]) -> Iterator[dict[str, str]]:
    if not rest:
        yield values
        return
    first, *others = rest
    if not first.active(values):
        yield from _grid(tuple(others), values)
        return
    texts = first.texts
    if texts is None:
        raise ValueError(first.name)
    for text in texts:
        yield from _grid(tuple(others), {**values, first.name: text})


def combinations(space: tuple[Parameter, ...], most: int = LARGEST_GRID) -> int | None:
    """How many combinations there are; None where they cannot be counted, or are more than `most`."""
    count = 0
    try:
        for count, _ in enumerate(grid(space), 1):
            if count > most:
                return None
    except ValueError:
        return None
    return count


def in_order(space: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """The parameters with those that others depend on before these; otherwise as they were.

    Raises:
        ValueError: some depend on each other in a circle; names them.
    """
    left, found = list(space), list[Parameter]()
    while left:
        known = {one.name for one in found}
        ready = next((one for one in left if all(name in known for name, _ in one.when)), None)
        if ready is None:
            raise ValueError(", ".join(one.name for one in left))
        left.remove(ready)
        found.append(ready)
    return tuple(found)


def fits(space: tuple[Parameter, ...], values: Values) -> bool:
    """Whether values are a point of the space: of each active parameter one that it may have, and no others."""
    for parameter in space:
        if parameter.active(values) != (parameter.name in values):
            return False
        if parameter.name in values and parameter.place(values[parameter.name]) is None:
            return False
    return set(values) <= {parameter.name for parameter in space}


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))
