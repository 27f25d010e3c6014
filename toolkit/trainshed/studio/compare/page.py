"""The comparison as one page, in the look of the report: the table, the loss curves over one another, and the times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from trainshed.base.errors import TrainshedError
from trainshed.base.files import write_atomic
from trainshed.studio.pages.bars import Row as Bar
from trainshed.studio.pages.bars import Span, lasting
from trainshed.studio.pages.bars import draw as draw_bars
from trainshed.studio.pages.chart import Chart, Line
from trainshed.studio.pages.chart import draw as draw_chart
from trainshed.studio.pages.curves import SMOOTHED
from trainshed.studio.pages.markup import document, section, table
from trainshed.studio.pages.scale import short
from trainshed.studio.pages.style import COLOURS, STYLE
from trainshed.studio.pages.thin import smoothed, thin

from .facts import Facts
from .table import Row, with_gains

LARGEST = 290_000  # bytes of a page
PARTS = 300  # columns of a curve that are drawn, of two runs


def write_page(path: str, runs: Sequence[Facts], made: list[Row]) -> None:
    """Writes the page.

    Raises:
        TrainshedError: the file cannot be written.
    """
    try:
        write_atomic(path, page(runs, made))
    except OSError as error:
        raise TrainshedError(f"{path} cannot be written: {error.strerror}") from error


def page(runs: Sequence[Facts], made: list[Row]) -> str:
    """The whole document."""
    names = [run.name for run in runs]
    body = table([[row.name, *with_gains(row)] for row in made], ["", *names], kind="numbers")
    curves = losses(runs, max(30, PARTS * 2 // len(runs)))
    times = [("Training time", [run.training for run in runs]), ("Billable time", [run.billable for run in runs])]
    title = f"{names[0]} and {names[1]}" if len(names) == 2 else f"{len(names)} runs"
    shown = "".join(section(what, bars(seconds, names)) for what, seconds in times)
    content = f"{section(title, body)}{section('Loss', curves)}{shown}"
    return document(title, f"<main>{content}</main>", STYLE)


def losses(runs: Sequence[Facts], parts: int = PARTS) -> str:
    """The curves over one another, "" where there are none. parts: columns that a curve is thinned to."""
    lines = []
    for number, run in enumerate(runs):
        xs, values = [x for x, _ in run.losses], [y for _, y in run.losses]
        if xs and all(a <= b for a, b in itertools.pairwise(xs)):
            smooth = thin(xs, smoothed(values), parts // 3) if len(xs) >= SMOOTHED else None
            lines.append(Line(run.name, thin(xs, values, parts), smooth, number % COLOURS, short(values[-1])))
    if not lines:
        return ""
    boxes = (
        '<input type="checkbox" class="sw" id="log"><input type="checkbox" class="sw" id="smooth">'
        '<div class="opts"><label for="log">logarithmic</label><label for="smooth">smoothed</label></div>'
    )
    return f'{boxes}<div class="grid">{draw_chart(Chart("loss", tuple(lines)))}</div>'


def bars(seconds: Sequence[float | None], names: Sequence[str]) -> str:
    """One bar a run, "" where a value is missing."""
    known = [value for value in seconds if value]
    if len(known) < len(seconds):
        return ""
    rows = [
        Bar(name, (Span(0.0, value, f"f{number % COLOURS}", lasting(value), f"{name}: {short(value)} s"),))
        for number, (value, name) in enumerate(zip(known, names, strict=True))
    ]
    return draw_bars(rows)
