"""The comparison as one HTML file: the table, the loss curves and the bars, as SVG; nothing is loaded from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Sequence

from trainshed.base.errors import TrainshedError
from trainshed.base.files import write_atomic

from .facts import Facts
from .table import Row

WIDTH, HEIGHT, MARGIN = 640, 300, 48
COLORS = ("#1f6f8b", "#d1495b")
POINTS = 400  # of a curve that are drawn
_STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:760px;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:left}"
    "th+th,td+td{text-align:right}svg{width:100%;height:auto}text{font:12px system-ui,sans-serif;fill:#444}"
)


def write_page(path: str, pair: tuple[Facts, Facts], made: list[Row]) -> None:
    """Writes the page.

    Raises:
        TrainshedError: the file cannot be written.
    """
    try:
        write_atomic(path, page(pair, made))
    except OSError as error:
        raise TrainshedError(f"{path} cannot be written: {error.strerror}") from error


def page(pair: tuple[Facts, Facts], made: list[Row]) -> str:
    """The whole document."""
    names = [html.escape(facts.name) for facts in pair]
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in (row.name, row.first, row.second, row.gain)) + "</tr>"
        for row in made
    )
    heads = "".join(
        f'<th><span style="color:{color}">&#9632;</span> {name}</th>' for color, name in zip(COLORS, names, strict=True)
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{names[0]} and {names[1]}</title><style>{_STYLE}</style>"
        f"<h1>Two runs</h1><table><tr><th></th>{heads}<th></th></tr>{body}</table>"
        f"{_section('Loss by step', curves([facts.losses for facts in pair]))}"
        f"{_section('Training time, seconds', bars([facts.training for facts in pair], names))}"
        f"{_section('Billable seconds', bars([facts.billable for facts in pair], names))}</html>\n"
    )


def _section(title: str, drawing: str) -> str:
    return f"<h2>{title}</h2>{drawing}" if drawing else ""


def curves(series: Sequence[Sequence[tuple[float, float]]]) -> str:
    """Lines over steps, "" where there is nothing to draw."""
    points = [point for line in series for point in line]
    if len(points) < 2:
        return ""
    low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
    low_y, high_y = min(y for _, y in points), max(y for _, y in points)
    span_x, span_y = high_x - low_x or 1.0, high_y - low_y or 1.0

    def place(x: float, y: float) -> str:
        across = MARGIN + (x - low_x) / span_x * (WIDTH - 2 * MARGIN)
        down = HEIGHT - MARGIN - (y - low_y) / span_y * (HEIGHT - 2 * MARGIN)
        return f"{across:.1f},{down:.1f}"

    drawn = []
    for line, color, dash in zip(series, COLORS, ("", "6 4"), strict=True):  # they should lie on each other
        every = max(1, len(line) // POINTS)
        path = " ".join(place(x, y) for x, y in [*line[::every], *line[-1:]])
        drawn.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}" points="{path}"/>')
    bottom = HEIGHT - MARGIN
    axes = (
        f'<path d="M{MARGIN},{MARGIN}V{bottom}H{WIDTH - MARGIN}" fill="none" stroke="#999"/>'
        f'<text x="4" y="{MARGIN + 4}">{high_y:.4g}</text><text x="4" y="{bottom}">{low_y:.4g}</text>'
        f'<text x="{MARGIN}" y="{bottom + 18}">{low_x:g}</text>'
        f'<text x="{WIDTH - MARGIN}" y="{bottom + 18}" text-anchor="end">{high_x:g}</text>'
    )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{axes}{"".join(drawn)}</svg>'


def bars(values: Sequence[float | None], names: Sequence[str]) -> str:
    """One bar a run, "" where a value is missing."""
    known = [value for value in values if value]
    if len(known) < len(values):
        return ""
    drawn = []
    for index, (value, name, color) in enumerate(zip(known, names, COLORS, strict=True)):
        top = 10 + index * 40
        length = value / max(known) * (WIDTH - 2 * MARGIN)
        drawn.append(
            f'<rect x="0" y="{top}" width="{length:.1f}" height="24" fill="{color}"><title>{name}</title></rect>'
            f'<text x="{length + 6:.1f}" y="{top + 16}">{value:.4g}</text>'
        )
    return f'<svg viewBox="0 0 {WIDTH} {20 + 40 * len(known)}" role="img">{"".join(drawn)}</svg>'
