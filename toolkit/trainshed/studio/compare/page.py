"""The comparison as one page: the table, the times, and all that the web page shows of runs over one another (`many.js`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainshed.base.errors import TrainshedError
from trainshed.base.files import write_atomic
from trainshed.metrics.reading import Curve, MetricsReader
from trainshed.runner.state.outputs import outputs_of
from trainshed.runner.state.stored import load
from trainshed.studio.pages import engine
from trainshed.studio.pages.bars import BarRow as Bar
from trainshed.studio.pages.bars import Span, lasting
from trainshed.studio.pages.bars import draw as draw_bars
from trainshed.studio.pages.chart import spec
from trainshed.studio.pages.curves import RunLine, chart_of, over_one_another
from trainshed.studio.pages.markup import document, section, table
from trainshed.studio.pages.scale import short
from trainshed.studio.pages.style import STYLE

from .facts import Facts
from .table import ComparisonRow, with_gains
from .together import together

LARGEST = 4 << 20  # bytes of all curves
_AXES = ("", "step", "epoch", "time")
_POINT = 40  # bytes of a place, a value and a mean, about


def write_page(path: str, runs: Sequence[Facts], made: list[ComparisonRow]) -> None:
    """Writes the page.

    Raises:
        TrainshedError: the file cannot be written.
    """
    try:
        write_atomic(path, page(runs, made))
    except OSError as error:
        raise TrainshedError(f"{path} cannot be written: {error.strerror}") from error


def page(runs: Sequence[Facts], made: list[ComparisonRow]) -> str:
    """The whole document."""
    names = _apart([run.name for run in runs])
    body = table([[row.name, *with_gains(row)] for row in made], ["", *names], kind="numbers")
    times = [("Training time", [run.training for run in runs]), ("Billable time", [run.billable for run in runs])]
    title = f"{names[0]} and {names[1]}" if len(names) == 2 else f"{len(names)} runs"
    shown = "".join(section(what, bars(seconds, names)) for what, seconds in times)
    told = {
        "told": together([(str(at), names[at], load(run.folder)) for at, run in enumerate(runs)]),
        "charts": charts([(names[at], _curves(run.folder)) for at, run in enumerate(runs)]),
    }
    data = f'<div id="many"></div><script type="application/json" id="told">{engine.embedded(told)}</script>'
    script = f"{engine.script('curves', 'many')}manyOfFile();unfold();"
    return document(title, f"<main>{data}{section('Side by side', body)}{shown}</main>", STYLE, script)


def charts(runs: Sequence[tuple[str, Mapping[str, Curve]]]) -> dict[str, dict[str, Any]]:
    """For each metric its chart over each axis that the curves have, "" for the one that fits."""
    groups = over_one_another(runs)
    points = LARGEST // _POINT // max(1, 2 * sum(len(lines) for _, lines in groups))
    window = (max(20, min(300, points // 2)), -math.inf, math.inf)
    return {title: _over_each(title, lines, window) for title, lines in groups}


def _over_each(title: str, lines: Sequence[RunLine], window: tuple[int, float, float]) -> dict[str, Any]:
    drawn = {wanted: chart_of(title, lines, window, wanted) for wanted in _AXES}
    count = sum(len(line.curve.track) for line in lines)
    fits = drawn[""].across
    return {
        wanted: {**spec(one), "count": count} for wanted, one in drawn.items() if not wanted or one.across == wanted != fits
    }


def _curves(folder: str) -> dict[str, Curve]:
    reader = MetricsReader()
    reader.read_on(outputs_of(folder))
    return reader.curves()


def _apart(names: Sequence[str]) -> list[str]:
    """Names that are told apart."""
    return [name if names.count(name) == 1 else f"{name} ({at + 1})" for at, name in enumerate(names)]


def bars(seconds: Sequence[float | None], names: Sequence[str]) -> str:
    """One bar a run, "" where a value is missing."""
    known = [value for value in seconds if value]
    if len(known) < len(seconds):
        return ""
    rows = [
        Bar(name, (Span(0.0, value, f"k{at % engine.COLOURS}", lasting(value), f"{short(value)} s"),))
        for at, (value, name) in enumerate(zip(known, names, strict=True))
    ]
    return draw_bars(rows)
