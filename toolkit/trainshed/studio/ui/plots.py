"""Curves for the page: read on as they grow, thinned to what a screen shows, sent only where they are new."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from trainshed.base.errors import one_line
from trainshed.metrics.reading import Curve, Reader
from trainshed.runner.state.outputs import outputs_of
from trainshed.studio.pages.curves import axis, groups
from trainshed.studio.pages.thin import thin

READ_SECONDS = 0.4  # for what is new, of one request: a long history comes in pieces
MOST_KEPT = 24  # runs whose columns stay in memory
LARGEST_PARTS = 2000
Lines = list[tuple[str, Curve]]
Window = tuple[int, float, float]  # columns of a picture, and from where to where it goes


class Plots:
    """The metrics of the runs that were looked at last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[Reader, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    def curves(self, folder: str, seconds: float = READ_SECONDS) -> tuple[dict[str, Curve], bool]:
        """A run's curves as far as they have been read, and whether that is to the end."""
        with self._lock:
            if folder not in self._kept:
                self._kept[folder] = (Reader(), threading.Lock())
                while len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(folder)
            reader, lock = self._kept[folder]
        with lock:
            whole = reader.read_on(outputs_of(folder), seconds)
            return reader.curves(), whole

    def charts(self, runs: list[tuple[str, str]], asked: dict[str, Any]) -> dict[str, Any]:
        """The charts of a run, or of several over one another.

        Args:
            runs: (name, folder) of each.
            asked: by the page: `known` (title -> points that it has), `seen` (the titles that it shows now; all without it),
                `axis` ("" for what fits), `parts`, and for a part of one chart `title`, `low` and `high`.

        Returns:
            charts: those with other points than the page has. titles: of all. whole: whether everything has been read.
        """
        until = time.monotonic() + READ_SECONDS
        read, whole = [], True
        for name, folder in runs:
            curves, done = self.curves(folder, max(0.02, until - time.monotonic()))
            read.append((name, curves))
            whole = whole and done
        known = asked.get("known")
        known = known if isinstance(known, dict) else {}
        wanted, seen = asked.get("title"), asked.get("seen")
        charts, titles = [], []
        for title, lines in _arranged(read):
            titles.append(one_line(title))
            count = sum(len(curve.track) for _, curve in lines)
            if isinstance(wanted, str):
                is_wanted = wanted == titles[-1]
            else:
                is_wanted = known.get(titles[-1]) != count and (not isinstance(seen, list) or titles[-1] in seen)
            if is_wanted:
                charts.append(_chart(title, lines, count, asked))
        return {"charts": charts, "titles": titles, "whole": whole}


def _arranged(read: list[tuple[str, dict[str, Curve]]]) -> list[tuple[str, Lines]]:
    """(title, lines) of each chart: of one run training and validation together, of several each metric by itself."""
    names = list(dict.fromkeys(name for _, curves in read for name in curves))
    if len(read) == 1:
        curves = read[0][1]
        return [(group.title, [(name, curves[name]) for _, name in group.members]) for group in groups(names)]
    order = [name for group in groups(names) for _, name in group.members]
    return [(name, [(run, curves[name]) for run, curves in read if name in curves]) for name in order]


def _chart(title: str, lines: Lines, count: int, asked: dict[str, Any]) -> dict[str, Any]:
    window = window_of(asked)
    several = [(name, curve) for name, curve in lines if len(curve.track) > 1] or lines
    across, places = _places(several, str(asked.get("axis") or ""))
    drawn = [drawn_line(name, xs, curve.track.values, window) for (name, curve), xs in zip(several, places, strict=True)]
    alone = [
        f"{one_line(name)[:80]} {_sendable(curve.track.values[-1])}" for name, curve in lines if (name, curve) not in several
    ]
    return {"title": one_line(title), "axis": across, "lines": drawn, "count": count, "once": alone[:20]}


def _places(lines: Lines, wanted: str) -> tuple[str, list[Any]]:
    """The axis that the page asks for, where the curves have it, else the one that fits; with the places on it."""
    from array import array

    curves = [curve for _, curve in lines]
    if wanted == "time":
        # Each run from its own start, so that they lie over one another.
        return "time", [array("d", (time - curve.track.times[0] for time in sorted(curve.track.times))) for curve in curves]
    if wanted in ("step", "epoch"):
        columns = [curve.steps() if wanted == "step" else curve.epochs() for curve in curves]
        found = [column for column in columns if column is not None]
        if len(found) == len(curves):
            return wanted, found
    return axis(curves, min(curve.track.times[0] for curve in curves))


def window_of(asked: dict[str, Any]) -> Window:
    """The part of a chart that a request wants, and how finely."""
    low, high = (_number(asked.get(name)) for name in ("low", "high"))
    parts = asked.get("parts")
    parts = max(20, min(parts, LARGEST_PARTS)) if type(parts) is int else 400
    return (parts, -math.inf, math.inf) if low is None or high is None else (parts, low, high)


def drawn_line(name: str, xs: Sequence[float], values: Sequence[float], window: Window) -> dict[str, Any]:
    """One line of a chart.

    Args:
        xs: places of the values, never falling.
    """
    parts, low, high = window
    thinned = thin(xs, values, parts, low, high)
    return {
        "name": one_line(name)[:200],
        "x": [x for x, _ in thinned.points],
        "y": [y for _, y in thinned.points],
        "odd": [list(found) for found in thinned.odd[:200]],
        "count": len(values),
        "last": _sendable(values[-1]),
    }


def one_chart(told: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """A chart of what is not a run's metrics, in the form of `Plots.charts`.

    Args:
        told: `title`, `axis`, the places `x`, and `lines` with a value at each place, by their names.
    """
    title, xs, known = told["title"], told["x"], asked.get("known")
    if not xs or (isinstance(known, dict) and known.get(title) == len(xs)):
        return {"charts": [], "titles": [title] if xs else [], "whole": True}
    lines = [drawn_line(name, xs, values, window_of(asked)) for name, values in told["lines"].items()]
    chart = {"title": title, "axis": told["axis"], "lines": lines, "count": len(xs), "once": []}
    return {"charts": [chart], "titles": [title], "whole": True}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0 else None


def _sendable(value: float) -> float | str:
    return value if value - value == 0 else "NaN" if value != value else "inf" if value > 0 else "-inf"
