"""Curves for the page: read on as they grow, thinned to what a screen shows, sent only where they are new."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from trainshed.base.errors import one_line
from trainshed.metrics.reading import Curve, MetricsReader
from trainshed.runner.state.outputs import outputs_of
from trainshed.studio.pages.chart import Chart, Line, spec
from trainshed.studio.pages.curves import RunLine, Window, chart_of, groups, over_one_another, start_of
from trainshed.studio.pages.engine import plain
from trainshed.studio.pages.events import Event
from trainshed.studio.pages.thin import thin

READ_SECONDS = 0.4  # for what is new, of one request: a long history comes in pieces
MOST_KEPT = 100  # runs whose columns stay in memory; as many as may be over one another
LARGEST_PARTS = 2000


class Plots:
    """The metrics of the runs that were looked at last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[MetricsReader, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    def curves(self, folder: str, seconds: float = READ_SECONDS) -> tuple[dict[str, Curve], bool]:
        """A run's curves as far as they have been read, and whether that is to the end."""
        with self._lock:
            if folder not in self._kept:
                self._kept[folder] = (MetricsReader(), threading.Lock())
                while len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(folder)
            reader, lock = self._kept[folder]
        with lock:
            whole = reader.read_on(outputs_of(folder), seconds)
            return reader.curves(), whole

    def charts(self, runs: list[tuple[str, str]], asked: dict[str, Any], happened: Sequence[Event] = ()) -> dict[str, Any]:
        """The charts of a run, or of several over one another.

        Args:
            runs: (name, folder) of each.
            asked: by the page: `known` (title -> points that it has), `seen` (the titles that it shows now; all without it),
                `axis` ("" for what fits), `parts`, and for a part of one chart `title`, `low` and `high`.
            happened: to the run, where it is one.

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
            count = sum(len(line.curve.track) for line in lines)
            if isinstance(wanted, str):
                is_wanted = wanted == titles[-1]
            else:
                is_wanted = known.get(titles[-1]) != count and (not isinstance(seen, list) or titles[-1] in seen)
            if is_wanted:
                drawn = chart_of(title, lines, window_of(asked), str(asked.get("axis") or ""), happened)
                charts.append(sendable(drawn, count))
        return {"charts": charts, "titles": titles, "whole": whole}


def _arranged(runs: list[tuple[str, dict[str, Curve]]]) -> list[tuple[str, list[RunLine]]]:
    """(title, lines) of each chart: of one run training and validation together, of several each metric by itself."""
    if len(runs) != 1:
        return over_one_another(runs)
    ((_, curves),) = runs
    start = start_of(curves)
    return [(one.title, [RunLine(name, curves[name], start) for _, name in one.members]) for one in groups(list(curves))]


def window_of(asked: dict[str, Any]) -> Window:
    """The part of a chart that a request wants, and how finely."""
    low, high = (_number(asked.get(name)) for name in ("low", "high"))
    parts = asked.get("parts")
    parts = max(20, min(parts, LARGEST_PARTS)) if type(parts) is int else 400
    return (parts, -math.inf, math.inf) if low is None or high is None else (parts, low, high)


def sendable(chart: Chart, count: int) -> dict[str, Any]:
    """A chart for the page. count: by which the page knows which points it has."""
    return plain({**spec(chart), "count": count})


def one_chart(told: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """A chart of what is not a run's metrics, in the form of `Plots.charts`.

    Args:
        told: `title`, `axis`, the places `x`, and `lines` with a value at each place, by their names.
    """
    title, xs, known = told["title"], told["x"], asked.get("known")
    if not xs or (isinstance(known, dict) and known.get(title) == len(xs)):
        return {"charts": [], "titles": [title] if xs else [], "whole": True}
    lines = tuple(Line(name, thin(xs, values, *window_of(asked))) for name, values in told["lines"].items())
    return {"charts": [sendable(Chart(title, lines, told["axis"]), len(xs))], "titles": [title], "whole": True}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value - value == 0 else None
