"""One measured value and its line in a file: JSON lines as in the platform's `SAGEMAKER_METRICS_DIRECTORY`.

    {"MetricName": "loss", "Value": 0.125, "Timestamp": 1790000000.5, "Step": 10, "Epoch": 0.5, "Rank": 0}

Source: what sagemaker-experiments and version 3 of Amazon's SDK write there (`MetricName`, `Value`, `Timestamp` in seconds,
`IterationNumber` or `Step`). `Epoch` and `Rank` are ours, and so is that values which are not finite are kept, as the texts
`NaN`, `Infinity` and `-Infinity`: a loss that is no number any more is what people look for.
"""

from __future__ import annotations

import json

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Where a value was measured, not what was: these are never metrics.
PLACES = frozenset({"step", "epoch", "batch", "iteration", "iter", "global_step", "round", "rank"})
STEPS = ("step", "global_step", "iteration", "iter", "round", "batch")  # which of them is the step, the first that is there
LONGEST_NAME = 255  # characters, as the platform has it
_LARGEST_STEP = 1 << 53  # what JSON readers in other languages can hold


class Point(Record):
    """One value of one metric.

    time: seconds since 1970, when it was measured or read.
    step: optimizer steps, or whatever the script counts; None where nobody said.
    epoch: passes over the data, None where nobody said.
    rank: which rank measured it; None where nobody said.
    """

    name: str
    value: float
    time: float
    step: int | None = None
    epoch: float | None = None
    rank: int | None = None


def line_of(point: Point) -> str:
    """The point as one line of JSON, with its newline."""
    return head_of(point.name) + text_of(point.value) + tail_of(point.time, point.step, point.epoch, point.rank)


# The parts of a line, for who writes many: by hand, since a number needs nothing that `json` is slow for.


def head_of(name: str) -> str:
    """A line's beginning, up to its value."""
    return f'{{"MetricName": {json.dumps(name)}, "Value": '


def text_of(value: float) -> str:
    """A value as it stands in a line."""
    if value - value == 0:
        return _number(value)
    return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'


def tail_of(time: float, step: int | None, epoch: float | None, rank: int | None) -> str:
    """A line's end, from its value on: seconds since 1970, and where it was measured."""
    places = "" if step is None else f', "Step": {_number(step)}'
    if epoch is not None:
        places += f', "Epoch": {_number(epoch)}'
    if rank is not None:
        places += f', "Rank": {_number(rank)}'
    return f"{time_of(time)}{places}}}\n"


def time_of(time: float) -> str:
    """The time in a line: seconds since 1970."""
    return f', "Timestamp": {_number(round(time, 3))}'


def _number(value: float) -> str:
    """As `json.dumps` has it."""
    return repr(value) if type(value) is int or (type(value) is float and value - value == 0) else json.dumps(value)


def point_of(line: str | bytes) -> Point | None:
    """The point that a line holds, None for lines of any other form."""
    try:
        fields = json.loads(line)
        name, value, time = fields["MetricName"], float(fields["Value"]), float(fields.get("Timestamp") or 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or time != time:
        return None
    return Point(
        name=name,
        value=value,
        time=time,
        step=whole(fields.get("Step", fields.get("IterationNumber"))),
        epoch=finite(fields.get("Epoch")),
        rank=whole(fields.get("Rank")),
    )


def at(values: Iterable[tuple[str, float]], places: dict[str, str | float], time: float, rank: int | None) -> list[Point]:
    """Points of what one line tells.

    Args:
        places: where they were measured, by names of `PLACES`; what is not a number is left out.
        rank: whose line it is, None where the line itself says it or nobody knows.
    """
    step = next((found for name in STEPS if (found := whole(places.get(name))) is not None), None)
    rank = whole(places.get("rank")) if rank is None else rank
    epoch = finite(places.get("epoch"))
    return [Point(name, value, time, step, epoch, rank) for name, value in values]


def whole(value: object) -> int | None:
    """A whole number from what a file or a line says, None for anything else."""
    number = finite(value)
    return int(number) if number is not None and number == int(number) and abs(number) <= _LARGEST_STEP else None


def finite(value: object) -> float | None:
    """A number that is not infinite, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if number - number == 0 else None
