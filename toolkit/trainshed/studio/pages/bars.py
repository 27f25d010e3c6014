"""Bars as SVG: what happened when (a row a host), and what a whole consists of (a row a rank)."""

from __future__ import annotations

from trainshed.base.record import Record

from .markup import bounded, more, text
from .scale import Scale, clock, elapsed, linear, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WIDTH = 1060
_LEFT, _RIGHT, _ROW, _BAR = 120, 14, 30, 20
_LARGEST = 60_000  # characters of a figure
_LETTER = 6.6  # pixels of a letter, about


class Span(Record):
    """A part of a row. kind: the class of its colour. said: in it, where there is room. told: over it."""

    start: float
    end: float
    kind: str
    said: str = ""
    told: str = ""


class Row(Record):
    """One row of bars. marks: (place, what happened there)."""

    name: str
    spans: tuple[Span, ...]
    marks: tuple[tuple[float, str], ...] = ()


def draw(rows: Sequence[Row], *, seconds: bool = True, width: int = WIDTH, row: int = _ROW, unit: str = "") -> str:
    """A figure with the rows over one axis; "" where nothing lasts.

    Args:
        seconds: whether the axis is a time, else plain numbers with `unit` behind them.
        row: pixels of a row.
    """
    spans = [span for one in rows for span in one.spans]
    low, high = min((span.start for span in spans), default=0.0), max((span.end for span in spans), default=0.0)
    if not high > low:
        return ""
    right = width - _RIGHT
    across = elapsed(low, high, _LEFT, right, 8) if seconds else linear(low, high, _LEFT, right, about=8, tight=True)
    bottom = 4 + row * len(rows)
    drawn = [f'<path class="grd" d="{"".join(f"M{across.place(mark):.1f},4V{bottom}" for mark, _ in across.ticks)}"/>']
    each = _LARGEST // max(1, len(rows))
    left_out = 0
    for index, one in enumerate(rows):
        part, without = bounded(_row(one, across, 4 + row * index, row), each)
        drawn.append(part)
        left_out += without
    for mark, said in across.ticks:
        place = across.place(mark)
        anchor = "end" if place > right - 20 else "middle"
        drawn.append(f'<text x="{place:.1f}" y="{bottom + 16}" text-anchor="{anchor}">{said}{unit}</text>')
    picture = f'<svg viewBox="0 0 {width} {bottom + 22}" role="img">{"".join(drawn)}</svg>'
    return f"<figure>{picture}{more(left_out)}</figure>"


def _row(row: Row, across: Scale, top: float, height: float) -> Iterator[str]:
    bar = min(_BAR, height - 4)
    middle = top + height / 2
    name = row.name if len(row.name) <= 17 else f"{row.name[:16]}…"
    yield f'<text class="row" x="0" y="{middle + 4:.1f}">{text(name)}</text>'
    for span in row.spans:
        left, right = across.place(span.start), across.place(span.end)
        size = max(0.6, right - left)
        title = f"<title>{text(span.told, 160)}</title>" if span.told else ""
        inside = ""
        if span.said and size > _LETTER * len(span.said) + 8:
            place = f'x="{left + size / 2:.1f}" y="{middle + 4:.1f}"'
            inside = f'<text class="inside" {place} text-anchor="middle">{text(span.said)}</text>'
        yield (
            f'<rect class="{span.kind}" x="{left:.1f}" y="{middle - bar / 2:.1f}" width="{size:.1f}" height="{bar:.0f}" '
            f'rx="2">{title}</rect>{inside}'
        )
    for place_, said in row.marks:
        x = across.place(place_)
        yield (
            f'<path class="odd" d="M{x - 5:.1f},{middle - bar / 2 - 4:.1f}h10l-5,8z"><title>{text(said, 160)}</title></path>'
        )


def lasting(seconds: float) -> str:
    """A length of time for a bar's text."""
    return f"{short(seconds)} s" if seconds < 60 else clock(seconds, 1)
