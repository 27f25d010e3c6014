"""One thing of `metrics.log` as pages show it: a picture, a table, a text or a sound. Its bytes may be anybody's.

Histograms, and lines, points and bars of plotly's figures, are drawn by the engine of all charts (`engine`): neither page
needs a library for them.
"""

from __future__ import annotations

import json
import math
from array import array
from base64 import b64decode, b64encode
from itertools import pairwise

from trainshed.base.errors import visible
from trainshed.base.record import Record
from trainshed.base.secrets import mask_text

from .engine import plain
from .facts import entries, mapping, words
from .scale import short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PICTURES = {"png": "png", "jpg": "jpeg", "gif": "gif", "webp": "webp"}
_MOST_TRACES, _MOST_POINTS = 12, 5000
_TYPED = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "f4": "f", "f8": "d"}  # of plotly's `bdata`


class Shown(Record):
    """What is shown of one file; texts are plain, with secrets masked.

    source: a picture, as a `data:` address.
    figure: a chart, for the engine.
    sound: a sound in base64.
    said: what else there is to say.
    """

    source: str = ""
    figure: dict[str, Any] | None = None
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
    return Shown(figure=_spec([_trace("count", "bar", middles, counts)]), said=said)


def _figure(told: dict[str, Any]) -> Shown:
    """A figure of plotly: the traces that are drawn here, and the kinds of the others."""
    names: dict[str, int] = {}  # categories across -> their places
    traces: list[dict[str, Any]] = []
    others = []
    for one in entries(told["data"])[:_MOST_TRACES]:
        kind = str(one.get("type") or "scatter")
        if kind not in ("scatter", "scattergl", "bar"):
            others.append(kind)
            continue
        values = _numbers(one.get("y"))
        places = _places(one.get("x"), len(values), names)
        mode = "bar" if kind == "bar" else "lines" if "lines" in str(one.get("mode") or "lines") else "markers"
        name = words(one.get("name")) or f"trace {len(traces) + 1}"
        traces.append(_trace(name, mode, places, values))
    said = f"{', '.join(others)} of plotly is not drawn here: open the file with plotly" if others else ""
    title = mapping(told.get("layout")).get("title")
    heading = words(mapping(title).get("text") if isinstance(title, dict) else title)
    drawn = _spec(traces, heading, "x", names) if any(trace["x"] for trace in traces) else None
    return Shown(figure=drawn, said=visible(mask_text(" · ".join(filter(None, (heading, said))))))


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


def _spec(lines: list[dict[str, Any]], title: str = "", axis: str = "value", names: Iterable[str] = ()) -> dict[str, Any]:
    """Lines, points and bars for the engine of charts. names: of the places 0, 1, ... across, where they have some."""
    least = {"least": 0, "most": 0} if any(line["mode"] == "bar" for line in lines) else {}
    named = [name[:14] for name in names]
    told = {"kind": "lines", "title": title, "axis": axis, "plain": True, "lines": lines, **least}
    return plain(told | ({"names": named} if named else {}))  # type: ignore[no-any-return]


def _trace(name: str, mode: str, places: list[float], values: list[float]) -> dict[str, Any]:
    """One of them. mode: `lines`, `markers` or `bar`."""
    drawn = [(x, y if y - y == 0 else None) for x, y in zip(places, values, strict=False) if x - x == 0]
    said = f"{len(drawn)} values"
    xs, ys = [x for x, _ in drawn], [y for _, y in drawn]
    last = next((y for y in reversed(ys) if y is not None), math.nan)
    return {"name": name, "mode": mode, "x": xs, "y": ys, "odd": [], "last": last, "more": said}


def words_of_place(step: int | None, epoch: float | None, kept: int, logged: int) -> str:
    """Where something was logged, and how much of its name is kept."""
    place = f"step {step}" if step is not None else f"epoch {short(epoch)}" if epoch is not None else ""
    return ", ".join(filter(None, (place, f"{kept} of {logged} steps are kept" if logged > kept else "")))
