"""One thing of `metrics.log` as pages show it: a picture, a table, a text or a sound. Its bytes may be anybody's.

Histograms, and lines, points and bars of plotly's figures, become pictures here (SVG within `<img>`, where nothing in it can
act), so that neither page needs a library for them.
"""

from __future__ import annotations

import json
import math
from array import array
from base64 import b64decode, b64encode
from itertools import pairwise
from typing import NamedTuple

from trainshed.base.errors import visible
from trainshed.base.record import Record
from trainshed.base.secrets import mask_text

from .facts import entries, mapping, words
from .markup import text
from .scale import short
from .ticks import linear

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .ticks import Scale

PICTURES = {"png": "png", "jpg": "jpeg", "gif": "gif", "webp": "webp"}
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM = 560, 230, 52, 550, 26
_COLOURS = ("#3f7fdc", "#dd6b20", "#2b9a52", "#9a63d6", "#d0447c", "#0f8b9a", "#a07a24", "#7d8796")
_INK = "#7d8796"  # to be read by day and by night
_MOST_TRACES, _MOST_POINTS, _MOST_LABELS = 12, 5000, 8
_TYPED = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "f4": "f", "f8": "d"}  # of plotly's `bdata`


class Trace(NamedTuple):
    """One line of a figure. points: places and values. mode: `lines`, `markers` or `bar`."""

    name: str
    points: list[tuple[float, float]]
    mode: str


class Shown(Record):
    """What is shown of one file; texts are plain, with secrets masked.

    source: a picture, as a `data:` address.
    sound: a sound in base64.
    said: what else there is to say.
    """

    source: str = ""
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    sound: str = ""
    said: str = ""


def shown(kind: str, ending: str, data: bytes) -> Shown:
    """What to show of a file. kind: as in its index; ending: of its name."""
    try:
        if ending in PICTURES:
            return Shown(_address(f"image/{PICTURES[ending]}", data))
        if kind == "audio":
            return Shown(sound=b64encode(data).decode())
        if kind == "text":
            return Shown(text=visible(mask_text(data.decode("utf-8", "replace"))))
        told = mapping(json.loads(data))
        return {"table": _table, "histogram": _histogram, "figure": _figure}[kind](told)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return Shown(said="this file cannot be shown")


def _address(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{b64encode(data).decode()}"


def _table(told: dict[str, Any]) -> Shown:
    rows = tuple(tuple(map(_cell, row)) for row in told["rows"] if isinstance(row, list))
    beyond = int(told.get("count") or 0) - len(rows)
    return Shown(columns=tuple(map(_cell, told["columns"])), rows=rows, said=f"{beyond} more rows" if beyond > 0 else "")


def _cell(value: object) -> str:
    return visible(mask_text("" if value is None else str(value)[:300]))


def _histogram(told: dict[str, Any]) -> Shown:
    counts, edges = (_numbers(told[name]) for name in ("counts", "edges"))
    odd = f", {int(told['odd'])} of them not finite" if told.get("odd") else ""
    said = f"{int(told['count'])} values{odd}"
    if not counts or len(edges) != len(counts) + 1:
        return Shown(said=said)
    middles = [left / 2 + right / 2 for left, right in pairwise(edges)]
    return Shown(_picture([Trace("", [*zip(middles, counts, strict=True)], "bar")], []), said=said)


def _figure(told: dict[str, Any]) -> Shown:
    """A figure of plotly: the traces that are drawn here, and the kinds of the others."""
    names: dict[str, int] = {}  # categories across -> their places
    traces, others = [], []
    for one in entries(told["data"])[:_MOST_TRACES]:
        kind = str(one.get("type") or "scatter")
        if kind not in ("scatter", "scattergl", "bar"):
            others.append(kind)
            continue
        values = _numbers(one.get("y"))
        places = _places(one.get("x"), len(values), names)
        mode = "bar" if kind == "bar" else "lines" if "lines" in str(one.get("mode") or "lines") else "markers"
        traces.append(Trace(words(one.get("name")), [*zip(places, values, strict=False)], mode))
    said = f"{', '.join(others)} of plotly is not drawn here: open the file with plotly" if others else ""
    title = mapping(told.get("layout")).get("title")
    heading = words(mapping(title).get("text") if isinstance(title, dict) else title)
    source = _picture(traces, list(names)) if traces else ""
    return Shown(source, said=visible(mask_text(" · ".join(filter(None, (heading, said))))))


def _numbers(value: Any) -> list[float]:
    """A column of numbers, NaN for what is none."""
    return [_number(one) for one in _listed(value)[:_MOST_POINTS]]


def _number(value: object) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if good else math.nan  # type: ignore[arg-type]


def _listed(value: Any) -> list[Any]:
    """A list, also where plotly has packed it (its version 6)."""
    if isinstance(value, dict) and value.get("dtype") in _TYPED:
        return array(_TYPED[value["dtype"]], b64decode(value["bdata"])).tolist()
    return value if isinstance(value, list) else []


def _places(value: Any, count: int, names: dict[str, int]) -> list[float]:
    """Where a trace's values stand across: numbers, or the places of categories."""
    listed = _listed(value)[:_MOST_POINTS]
    if not listed:
        return [float(number) for number in range(count)]
    if any(isinstance(one, str) for one in listed):
        return [float(names.setdefault(str(one), len(names))) for one in listed]
    return [_number(one) for one in listed]


def _picture(traces: list[Trace], names: list[str]) -> str:
    """Lines, points and bars over one axis, as an SVG; "" where none of them is finite."""
    finite = [trace._replace(points=[at for at in trace.points if at[0] - at[0] == 0 == at[1] - at[1]]) for trace in traces]
    across, up = ([at[side] for trace in finite for at in trace.points] for side in (0, 1))
    if not up:
        return ""
    bars = [trace for trace in finite if trace.mode == "bar"]
    wide = _widest(across) if bars else 0.0
    up += [0.0] if bars else []
    x = linear(min(across) - wide / 2, max(across) + wide / 2, _LEFT, _RIGHT, about=6, tight=True)
    y = linear(min(up), max(up), _HEIGHT - _BOTTOM, 10)
    part = (x.place(x.low + wide) - _LEFT) * 0.92 / max(1, len(bars))
    drawn, left = [], -part * len(bars) / 2
    for colour, trace in zip(_COLOURS * 2, finite, strict=False):
        places = [(x.place(at), y.place(value)) for at, value in trace.points]
        if trace.mode == "bar":
            drawn.append(_bars([(at + left, top) for at, top in places], part, y.place(0), colour, trace.name))
            left += part
        else:
            drawn.append(_line(places, trace.mode, colour, trace.name))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="11"><g fill="{_INK}">{_axes(x, y, names)}{"".join(drawn)}</g></svg>'
    )
    return _address("image/svg+xml", svg.encode())


def _axes(x: Scale, y: Scale, names: list[str]) -> str:
    every = max(1, -(-len(names) // _MOST_LABELS))
    ticks = [(float(at), text(name[:14])) for at, name in enumerate(names)][::every] if names else x.ticks
    drawn = [f'<text x="{x.place(mark):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{said}</text>' for mark, said in ticks]
    for mark, said in y.ticks:
        drawn.append(f'<path d="M{_LEFT},{y.place(mark):.1f}H{_RIGHT}" stroke="{_INK}" stroke-opacity=".25"/>')
        drawn.append(f'<text x="{_LEFT - 6}" y="{y.place(mark) + 4:.1f}" text-anchor="end">{said}</text>')
    return "".join(drawn)


def _bars(places: list[tuple[float, float]], width: float, base: float, colour: str, name: str) -> str:
    shape = "".join(f"M{left:.1f},{base:.1f}V{top:.1f}h{width:.1f}V{base:.1f}z" for left, top in places)
    return f'<path d="{shape}" fill="{colour}"><title>{text(name, 80)}</title></path>'


def _line(places: list[tuple[float, float]], mode: str, colour: str, name: str) -> str:
    title = f"<title>{text(name, 80)}</title>"
    if mode == "lines" and len(places) > 1:
        shape = "L".join(f"{x:.1f},{y:.1f}" for x, y in places)
        return f'<path d="M{shape}" fill="none" stroke="{colour}" stroke-width="1.7">{title}</path>'
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    return f'<g fill="{colour}">{title}{dots}</g>'


def _widest(places: list[float]) -> float:
    """How wide bars at these places may be."""
    several = sorted(set(places))
    return min((after - before for before, after in pairwise(several)), default=1.0)


def words_of_place(step: int | None, epoch: float | None, kept: int, logged: int) -> str:
    """Where something was logged, and how much of its name is kept."""
    place = f"step {step}" if step is not None else f"epoch {short(epoch)}" if epoch is not None else ""
    return ", ".join(filter(None, (place, f"{kept} of {logged} steps are kept" if logged > kept else "")))
