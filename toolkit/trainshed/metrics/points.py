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
    from typing import Any

# Where a value was measured, not what was: these are never metrics.
PLACES = frozenset({"step", "epoch", "batch", "iteration", "global_step", "round", "rank"})
STEPS = ("step", "global_step", "iteration", "round", "batch")  # which of them is the step, the first that is there
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
    fields: dict[str, Any] = {"MetricName": point.name, "Value": _value(point.value), "Timestamp": round(point.time, 3)}
    if point.step is not None:
        fields["Step"] = point.step
    if point.epoch is not None:
        fields["Epoch"] = point.epoch
    if point.rank is not None:
        fields["Rank"] = point.rank
    return json.dumps(fields) + "\n"


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


def _value(value: float) -> float | str:
    if value - value == 0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
