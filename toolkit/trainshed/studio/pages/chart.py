"""Curves for the engine, and in a page of ours: with title, note and last values, which stand there without a script."""

from __future__ import annotations

from trainshed.base.record import Record

from .engine import COLOURS, figure
from .markup import legend, text
from .scale import clock, short
from .thin import Thin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

SECONDS = "time"


class Line(Record):
    """One line of a chart.

    more: what the legend says beside the name, "" for the last value.
    last: the last value, also one that is not finite; None for that of the curve.
    """

    name: str
    curve: Thin
    more: str = ""
    last: float | None = None


class Chart(Record):
    """Lines over one axis.

    across: what the axis counts: `step`, `epoch`, `value`, or `SECONDS` since the start.
    least, most: numbers that the vertical axis must have.
    note: said below the title.
    once: metrics of one value, with it.
    events: (place, kind, words) of what happened.
    simple: it is neither smoothed nor drawn over a logarithmic axis.
    """

    title: str
    lines: tuple[Line, ...]
    across: str = "step"
    least: float | None = None
    most: float | None = None
    note: str = ""
    once: tuple[str, ...] = ()
    events: tuple[tuple[float, str, str], ...] = ()
    simple: bool = False


def draw(chart: Chart) -> str:
    """A figure; "" where there is nothing to draw."""
    if not any(line.curve.points for line in chart.lines):
        return ""
    said = f'<p class="note">{text(chart.note)}</p>' if chart.note else ""
    values = [line.more or short(_last(line)) for line in chart.lines]
    told = legend((f"k{at % COLOURS}", line.name, values[at]) for at, line in enumerate(chart.lines)) + _odd(chart)
    return f'<div class="card-of"><h3>{text(chart.title)}</h3>{said}{figure(spec(chart), told)}</div>'


def spec(chart: Chart) -> dict[str, Any]:
    """The chart as the engine takes it."""
    told: dict[str, Any] = {"kind": "lines", "title": chart.title, "axis": chart.across}
    optional = {
        "least": chart.least, "most": chart.most, "once": list(chart.once), "events": [list(one) for one in chart.events],
        "plain": chart.simple,
    }  # fmt: skip
    told |= {name: value for name, value in optional.items() if value is not False and value not in (None, [])}
    return told | {"lines": [_plain(line) for line in chart.lines]}


def _plain(line: Line) -> dict[str, Any]:
    curve = line.curve
    told: dict[str, Any] = {
        "name": line.name[:200], "x": [x for x, _ in curve.points], "y": [_near(y) for _, y in curve.points],
        "odd": [list(found) for found in curve.odd[:200]], "last": _last(line), "count": curve.count,
    }  # fmt: skip
    if curve.means:
        told["mean"] = [_near(mean) for mean in curve.means]
    return told | ({"more": line.more} if line.more else {})


def _near(value: float | None) -> float | None:
    """As fine as a picture is."""
    return None if value is None else float(f"{value:.6g}")


def _last(line: Line) -> float:
    if line.last is not None:
        return line.last
    return next((y for _, y in reversed(line.curve.points) if y is not None), float("nan"))


def _odd(chart: Chart) -> str:
    """How many numbers are not finite, and where the first of them is."""
    odd: Sequence[tuple[float, str, int]] = [found for line in chart.lines for found in line.curve.odd]
    if not odd:
        return ""
    counted: dict[str, int] = {}
    for _, kind, count in odd:
        counted[kind] = counted.get(kind, 0) + count
    said = ", ".join(f"{count:,} {kind}" for kind, count in counted.items())
    first = min(x for x, _, _ in odd)
    place = clock(first) if chart.across == SECONDS else f"{chart.across} {short(first) if first % 1 else f'{first:.0f}'}"
    return f'<p class="bad legend">▼ {said}, the first at {text(place)}</p>'
