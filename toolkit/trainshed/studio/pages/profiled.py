"""What a run used of its machines, and where the time of its steps went."""

from __future__ import annotations

from array import array

from trainshed.observe.bottleneck import verdict_of
from trainshed.observe.steps import PHASES

from .bars import BarRow, Span
from .bars import draw as draw_bars
from .chart import SECONDS, Chart, Line, draw
from .machine_charts import machine_charts
from .markup import legend, text
from .scale import short
from .thin import thin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainshed.observe.steps import RankSteps
    from trainshed.observe.system import Curves

    Points = list[tuple[float, float]]

_MOST_LINES = 16
_MOST_RANKS = 64
_COLOURS = dict(zip(PHASES, ("k4", "k5", "k0", "k1", "k3", "k2", "k6", "k7"), strict=True))


def draw_system(curves: Curves, start: float, parts: int) -> str:
    """Charts of the machines, "" where nothing was sampled.

    Args:
        start: of the run, seconds since 1970.
        parts: columns that a curve is thinned to.
    """
    drawn = []
    for one in machine_charts(curves):
        lines = [_line(name, points, start, parts, one.scale) for name, points in one.lines.items()]
        note = f"{len(lines) - _MOST_LINES} more are not shown" if len(lines) > _MOST_LINES else ""
        shown = tuple(line for line in lines[:_MOST_LINES] if line.curve.points)
        if shown:
            drawn.append(draw(Chart(one.title, shown, SECONDS, least=0.0, most=one.most, note=note, simple=True)))
    return f'<div class="grid">{"".join(drawn)}</div>' if drawn else ""


def _line(name: str, points: Points, start: float, parts: int, scale: float) -> Line:
    times = array("d", (time - start for time, _ in points))
    values = array("d", (value * scale for _, value in points))
    mean = sum(values) / len(values) if values else 0.0
    most = max(values, default=0.0)
    return Line(name, thin(times, values, parts), f"mean {short(mean)}, most {short(most)}")


def draw_steps(measured: Sequence[RankSteps], curves: Curves, start: float, parts: int) -> str:
    """Where a step's time goes on each rank, with the verdict; "" where no steps were measured."""
    last = {one.rank: one for one in measured if one.steps and one.seconds > 0}  # of several lives the last one
    if not last:
        return ""
    verdict = verdict_of(measured, curves)
    said = f"<p><b>{text(verdict.sentence(), 1200)}</b></p>" if verdict is not None else ""
    ranks = [last[rank] for rank in sorted(last)][:_MOST_RANKS]
    rows = tuple(_row(one) for one in ranks)
    seen = [name for name in PHASES if any(one.phases()[name] > 0 for one in ranks)]
    note = f'<p class="note">{len(last) - _MOST_RANKS} more ranks are not shown</p>' if len(last) > _MOST_RANKS else ""
    kinds = legend((_COLOURS[name], name, "") for name in seen)
    lines = []
    for one in ranks[:_MOST_LINES]:
        times = array("d", (window.time - start for window in one.windows))
        values = array("d", (1000 * window.seconds / window.steps for window in one.windows))
        more = f"mean {short(1000 * one.seconds / one.steps)}, longest {short(1000 * max(w.longest for w in one.windows))}"
        lines.append(Line(f"rank {one.rank}", thin(times, values, parts), more))
    chart = draw(Chart("Milliseconds of a step", tuple(lines), SECONDS, least=0.0, simple=True))
    return f'{said}{kinds}{draw_bars(rows, seconds=False, unit=" ms")}{note}<div class="grid">{chart}</div>'


def _row(one: RankSteps) -> BarRow:
    """A mean step of a rank, in milliseconds."""
    spans, at = [], 0.0
    for name, seconds in one.phases().items():
        length = 1000 * seconds / one.steps
        if length > 0:
            share = f"{100 * seconds / one.seconds:.0f} %"
            spans.append(Span(at, at + length, _COLOURS[name], share, f"{name}: {short(length)} ms of a step, {share}"))
            at += length
    return BarRow(f"rank {one.rank}", tuple(spans))
