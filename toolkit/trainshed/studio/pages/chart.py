"""Curves as SVG: axes with round marks, linear and logarithmic, raw and smoothed; read without a script.

Both scales are drawn, and a box above the charts shows one of them. What a column of the picture stands for is in the
text that a browser shows over it.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from trainshed.base.record import Record

from .markup import legend, text
from .scale import Scale, clock, elapsed, linear, logarithmic, short
from .style import COLOURS
from .thin import Thin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 560, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 34
_COLUMNS = 32  # that tell their numbers
_MOST_TOLD = 8  # lines whose numbers a column tells
_NEWLINE = "\n"
SECONDS = "time"


class Line(Record):
    """One line of a chart.

    smooth: the same curve smoothed, None for a line that has no smoothed one.
    colour: the number of its colour.
    more: what the legend says beside the name.
    """

    name: str
    curve: Thin
    smooth: Thin | None = None
    colour: int = 0
    more: str = ""


class Chart(Record):
    """Lines over one axis.

    across: what the axis counts: `step`, `epoch`, `value`, or `SECONDS` since the start.
    least, most: numbers that the vertical axis must have.
    note: said below the title.
    switchable: whether a logarithmic scale makes sense.
    """

    title: str
    lines: tuple[Line, ...]
    across: str = "step"
    least: float | None = None
    most: float | None = None
    note: str = ""
    switchable: bool = True


def draw(chart: Chart) -> str:
    """A figure; "" where there is nothing to draw."""
    xs = [x for line in chart.lines for x, _ in line.curve.points]
    ys = [y for line in chart.lines for _, y in line.curve.points if y is not None]
    odd = [found for line in chart.lines for found in line.curve.odd]
    if not xs:
        return ""
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    low, high = min(xs), max(xs)
    if chart.across == SECONDS:
        across = elapsed(low, high, _LEFT, right)
    else:
        across = linear(low, high, _LEFT, right, about=6, tight=high > low)
    drawn = []
    if ys:
        least = min(ys) if chart.least is None else min(chart.least, *ys)
        most = max(ys) if chart.most is None else max(chart.most, *ys)
        up = linear(least, most, bottom, _TOP + 4)
        positive = chart.switchable and min(ys) > 0 and max(ys) > min(ys) and max(ys) / min(ys) < 1e300
        drawn.append(_layer("lin", up, across, chart, right, bottom))
        if positive:
            drawn.append(_layer("log", logarithmic(min(ys), max(ys), bottom, _TOP + 4), across, chart, right, bottom))
        kind = "haslog" if positive else ""
    else:
        kind = ""
        middle = (_LEFT + right) / 2
        drawn.append(f'<text x="{middle:.0f}" y="{HEIGHT / 2:.0f}" text-anchor="middle">no finite value</text>')
    drawn += _marks(odd, across)
    drawn.append(_axis(across, chart.across, right, bottom))
    drawn += _columns(chart, across, bottom)
    said = f'<p class="note">{text(chart.note)}</p>' if chart.note else ""
    return (
        f'<figure><h3>{text(chart.title)}</h3>{said}{_legend(chart, odd)}<svg class="{kind}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{text(chart.title)}">{"".join(drawn)}</svg></figure>'
    )


def _layer(name: str, up: Scale, across: Scale, chart: Chart, right: float, bottom: float) -> str:
    grid = "".join(f"M{_LEFT},{up.place(mark):.1f}H{right}" for mark, _ in up.ticks)
    marks = "".join(
        f'<text x="{_LEFT - 6}" y="{up.place(mark) + 4:.1f}" text-anchor="end">{said}</text>' for mark, said in up.ticks
    )
    lines = []
    for line in chart.lines:
        colour = line.colour % COLOURS
        smooth = line.smooth is not None
        lines.append(_path(line.curve, across, up, f"ln l{colour}{' raw' if smooth else ''}", f"dot f{colour}"))
        if line.smooth is not None:
            lines.append(_path(line.smooth, across, up, f"ln l{colour} smo", ""))
    return f'<g class="{name}"><path class="grd" d="{grid}"/>{marks}{"".join(lines)}</g>'


def _path(curve: Thin, across: Scale, up: Scale, kind: str, dot: str) -> str:
    """A line; points that stand alone between breaks are dots."""
    parts: list[list[str]] = [[]]
    for x, y in curve.points:
        if y is None or (up.log and y <= 0):
            parts.append([])
        else:
            parts[-1].append(f"{_number(across.place(x))},{_number(up.place(y))}")
    path = "".join("M" + "L".join(part) for part in parts if len(part) > 1)
    dots = [part[0].split(",") for part in parts if len(part) == 1] if dot else []
    if dot and curve.whole and 1 < len(curve.points) <= 12:
        dots = [place.split(",") for part in parts for place in part]
    drawn = f'<path class="{kind}" d="{path}"/>' if path else ""
    return drawn + "".join(f'<circle class="{dot}" cx="{x}" cy="{y}" r="2.6"/>' for x, y in dots[:100])


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _marks(odd: Sequence[tuple[float, str, int]], across: Scale) -> list[str]:
    """Where numbers are not finite: triangles at the upper edge."""
    drawn = []
    for place in sorted({round(across.place(x)) for x, _, _ in odd})[:200]:
        drawn.append(f'<path class="odd" d="M{place - 4},2h8l-4,7z"/>')
    return drawn


def _axis(across: Scale, kind: str, right: float, bottom: float) -> str:
    drawn = [f'<path class="axis" d="M{_LEFT},{bottom}H{right}"/>']
    for mark, said in across.ticks:
        x = across.place(mark)
        anchor = "end" if x > right - 14 else "middle"
        drawn.append(f'<path class="axis" d="M{x:.1f},{bottom}v4"/>')
        drawn.append(
            f'<text x="{min(x + (anchor == "end") * 4, right):.1f}" y="{bottom + 16}" text-anchor="{anchor}">{said}</text>'
        )
    drawn.append(f'<text x="{(_LEFT + right) / 2:.0f}" y="{bottom + 30}" text-anchor="middle">{text(kind)}</text>')
    return "".join(drawn)


def _columns(chart: Chart, across: Scale, bottom: float) -> list[str]:
    """Columns without a colour, each with a text of the numbers in it."""
    width = (WIDTH - _RIGHT - _LEFT) / _COLUMNS
    found: list[list[str]] = [[] for _ in range(_COLUMNS)]
    kind = text(chart.across)
    for line in chart.lines:
        name = text(line.name, 80)  # once: masking takes longer than all the rest
        places = [across.place(x) for x, _ in line.curve.points]
        for number in range(_COLUMNS):
            start, end = _LEFT + number * width, _LEFT + (number + 1) * width
            last = math.inf if number == _COLUMNS - 1 else end
            inside = line.curve.points[bisect_left(places, start) : bisect_left(places, last)]
            values = [y for _, y in inside if y is not None]
            if values:
                least, most = short(min(values)), short(max(values))
                said = least if least == most else f"{least} to {most}"
                x = inside[0][0]
                at = clock(x) if chart.across == SECONDS else f"{kind} {short(x) if x % 1 else f'{x:.0f}'}"
                found[number].append(f"{name}, from {at}: {said}")
    return [
        f'<rect class="hov" x="{_LEFT + number * width:.1f}" y="{_TOP}" width="{width:.1f}" height="{bottom - _TOP}">'
        f"<title>{_NEWLINE.join(said[:_MOST_TOLD])}</title></rect>"
        for number, said in enumerate(found)
        if said
    ]


def _legend(chart: Chart, odd: Sequence[tuple[float, str, int]]) -> str:
    entries = [(f"f{line.colour % COLOURS}", line.name, line.more) for line in chart.lines]
    counted: dict[str, int] = {}
    for _, kind, count in odd:
        counted[kind] = counted.get(kind, 0) + count
    if counted:
        said = ", ".join(f"{count:,} {kind}" for kind, count in counted.items())
        return (
            legend(entries) + f'<p class="bad legend">▼ {said}, the first at {_place(chart, min(x for x, _, _ in odd))}</p>'
        )
    return legend(entries)


def _place(chart: Chart, x: float) -> str:
    return clock(x) if chart.across == SECONDS else f"{text(chart.across)} {short(x) if x % 1 else f'{x:.0f}'}"
