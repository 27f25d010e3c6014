"""Bars in a page of ours: what happened when (a row a host), and what a whole consists of (a row a rank)."""

from __future__ import annotations

from trainshed.base.record import Record

from .engine import figure
from .markup import more, text
from .scale import clock, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_LARGEST = 60_000  # characters of a figure
_LETTERS = 160  # of a text
_MOST_SAID = 60  # spans that are told without a script


class Span(Record):
    """A part of a row. kind: the class of its colour. said: in it, where there is room. told: over it."""

    start: float
    end: float
    kind: str
    said: str = ""
    told: str = ""

    def listed(self) -> list[Any]:
        """As the engine takes it."""
        return [self.start, self.end, self.kind, self.said[:_LETTERS], self.told[:_LETTERS]]


class BarRow(Record):
    """One row of bars. marks: (place, what happened there)."""

    name: str
    spans: tuple[Span, ...]
    marks: tuple[tuple[float, str], ...] = ()


def draw(rows: Sequence[BarRow], *, seconds: bool = True, row: int = 30, unit: str = "") -> str:
    """A figure with the rows over one axis; "" where nothing lasts.

    Args:
        seconds: whether the axis is a time, else plain numbers with `unit` behind them.
        row: pixels of a row.
    """
    spans = [span for one in rows for span in one.spans]
    low, high = min((span.start for span in spans), default=0.0), max((span.end for span in spans), default=0.0)
    if not high > low:
        return ""
    each, left_out, plain = _LARGEST // max(1, len(rows)), 0, []
    for one in rows:
        kept, without = _bounded([span.listed() for span in one.spans], each)
        marks, beyond = _bounded([[place, said[:_LETTERS]] for place, said in one.marks], each)
        left_out += without + beyond
        plain.append({"name": one.name[:_LETTERS], "spans": kept, "marks": marks})
    said = "".join(f"<p>{text(one.name)}: {text(', '.join(span.told for span in one.spans), 400)}</p>" for one in rows)
    spec = {"kind": "bars", "rows": plain, "seconds": seconds, "row": row, "unit": unit}
    return figure(spec, said if len(spans) <= _MOST_SAID else "") + more(left_out)


def _bounded(parts: list[list[Any]], largest: int) -> tuple[list[list[Any]], int]:
    """As many as fit into so many characters, and how many were left out."""
    size = 0
    for at, part in enumerate(parts):
        size += 30 + sum(2 * len(text) for text in part if isinstance(text, str))
        if at and size > largest:
            return parts[:at], len(parts) - at
    return parts, 0


def lasting(seconds: float) -> str:
    """A length of time for a bar's text."""
    return f"{short(seconds)} s" if seconds < 60 else clock(seconds, 1)
