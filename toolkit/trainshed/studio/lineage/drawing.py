"""A lineage as a picture: an SVG of boxes, parents to the left, what came of the run to the right."""

from __future__ import annotations

import html
from typing import Any

from trainshed.base.errors import shorten, visible

from .outline import facts

WIDTH, LINE, GAP_X, GAP_Y, EDGE = 300, 17, 70, 22, 16  # in pixels
LETTERS = 44  # that fit into a box
_STYLE = (
    "svg{background:#fff}text{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#1d2330}.s{fill:#5d6778}"
    ".n{font-weight:600;font-size:13px}rect{fill:#f6f7f9;stroke:#dfe3ea}.me rect{stroke:#2467c9;stroke-width:2}"
    ".gone rect{stroke-dasharray:5 4}path{fill:none;stroke:#98a3b5;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){svg{background:#11151c}text{fill:#e4e8ef}.s{fill:#98a3b5}"
    "rect{fill:#191f29;stroke:#2c3543}.me rect{stroke:#6ea8fe}}"
)
_EDGES = {"model": "model", "rerun": "made again"}


_Boxes = dict[str, tuple[int, list[str], str, str]]
_Edges = list[tuple[str, str, str]]


def boxes_of(told: dict[str, Any]) -> tuple[_Boxes, _Edges]:
    """What is drawn: by folder (column, lines, class, title), the first line being the name; and (from, to, what)."""
    boxes: _Boxes = {}
    edges: _Edges = []
    _up(told, 0, boxes, edges)
    _down(told, 0, boxes, edges)
    return boxes, edges


def drawing(told: dict[str, Any]) -> str:
    """The SVG of what `ancestry` tells; loads nothing, runs nothing."""
    boxes, edges = boxes_of(told)
    first = min(column for column, *_ in boxes.values())
    places: dict[str, tuple[int, int, int]] = {}  # left, top, height
    tops: dict[int, int] = {}
    for key, (column, lines, _, _) in boxes.items():
        height = EDGE + LINE * len(lines)
        top = tops.get(column, GAP_Y)
        places[key] = (GAP_X // 2 + (column - first) * (WIDTH + GAP_X), top, height)
        tops[column] = top + height + GAP_Y
    width = max(left for left, _, _ in places.values()) + WIDTH + GAP_X // 2
    parts = [_edge(places[start], places[end], what) for start, end, what in edges if start in places and end in places]
    parts += [_box(places[key], lines, kind, title) for key, (_, lines, kind, title) in boxes.items()]
    height = max(tops.values())
    name = _text(f"Where {told['run']} comes from")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img">'
        f"<title>{name}</title><style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )


def _up(told: dict[str, Any], column: int, boxes: _Boxes, edges: _Edges) -> None:
    if told.get("again"):
        return
    _put(told, column, boxes, "me" if column == 0 else "")
    for one in told.get("parents", ()):
        edges.append((one["folder"], told["folder"], _EDGES[one["kind"]]))
        if one["of"] is None:
            boxes.setdefault(one["folder"], (column - 1, [one["run"], "is gone"], "gone", one["folder"]))
        else:
            _up(one["of"], column - 1, boxes, edges)


def _down(told: dict[str, Any], column: int, boxes: _Boxes, edges: _Edges) -> None:
    for one in told.get("children", ()):
        edges.append((told["folder"], one["folder"], _EDGES[one["kind"]]))
        if not one["of"].get("again"):
            _put(one["of"], column + 1, boxes, "")
            _down(one["of"], column + 1, boxes, edges)


def _put(told: dict[str, Any], column: int, boxes: _Boxes, kind: str) -> None:
    rows = facts(told)
    lines = [str(told["run"]), f"{told['status']}, {told['started'][:19].replace('T', ' ')}"]
    lines += [f"{name} {words}".strip() for name, words in rows]
    title = "\n".join([told["folder"], *(f"{name} {words}".strip() for name, words in rows)])
    boxes.setdefault(told["folder"], (column, lines, kind, title))


def _box(place: tuple[int, int, int], lines: list[str], kind: str, title: str) -> str:
    left, top, height = place
    words = "".join(
        f'<text x="{left + 12}" y="{top + EDGE + 5 + number * LINE}" class="{"n" if number == 0 else "s"}">'
        f"{_text(shorten(line, LETTERS))}</text>"
        for number, line in enumerate(lines)
    )
    shape = f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{height}" rx="8"/>'
    return f'<g class="{kind}"><title>{_text(title)}</title>{shape}{words}</g>'


def _edge(start: tuple[int, int, int], end: tuple[int, int, int], what: str) -> str:
    x1, y1 = start[0] + WIDTH, start[1] + start[2] // 2
    x2, y2 = end[0], end[1] + end[2] // 2
    half = GAP_X // 2
    return (
        f'<path d="M{x1} {y1}C{x1 + half} {y1} {x2 - half} {y2} {x2} {y2}"/>'
        f'<text x="{x2 - 4}" y="{y2 - 5}" text-anchor="end" class="s">{_text(what)}</text>'
    )


def _text(text: str) -> str:
    return html.escape(visible(text), quote=True)
