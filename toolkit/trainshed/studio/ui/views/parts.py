"""What a view is made of, as JSON values: the page draws each kind in one way. All texts pass through `words`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trainshed.base.errors import one_line
from trainshed.base.plain_json import finite
from trainshed.base.secrets import mask_text

LONGEST = 500  # characters of a text
MOST_ROWS = 1000  # of a table
Part = dict[str, Any]


def view(
    title: object, parts: Iterable[Part | None], *, state: str = "", facts: Iterable[tuple[str, object]] = (), **more: Any
) -> Part:
    """A page.

    Args:
        state: how it stands, "" for what has no state. facts: (name, value) above all else.
        more: `live` (it changes by itself), `can` (what its buttons do now), `stop` (what the question of its Stop button
            says), `up` (where it belongs).
    """
    told = [[words(name), cell(value)] for name, value in facts if value not in ("", None)]
    shown = [part for part in parts if part is not None]
    return {"title": words(title), "state": words(state), "facts": told, "parts": shown, **more}


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "none") -> Part:
    """A table. empty: what is said where it has no rows."""
    held = list(rows)
    shown = [[cell(one) for one in row] for row in held[:MOST_ROWS]]
    more = max(0, len(held) - MOST_ROWS)
    return {
        "kind": "table",
        "title": title,
        "head": [words(one) or "more" for one in head],
        "rows": shown,
        "more": more,
        "empty": empty,
    }


def bars(title: str, rows: Iterable[tuple[str, float]], note: str) -> Part | None:
    """Parts of a whole, each from 0 to 1; None for none."""
    held = [[words(name), round(part, 4)] for name, part in rows]
    return {"kind": "bars", "title": title, "rows": held, "note": note} if held else None


def text(title: str, told: str) -> Part | None:
    """A text of several lines; None for none."""
    return {"kind": "text", "title": title, "text": mask_text(told)[:100_000]} if told else None


def graph(title: str, boxes: Iterable[Part], edges: Iterable[tuple[str, str, str]]) -> Part:
    """Boxes, each right of those that lead to it. edges: (from, to, in words)."""
    held = list(boxes)
    known = {one["id"] for one in held}
    led = [[start, end, words(what)] for start, end, what in edges if start in known and end in known]
    return {"kind": "graph", "title": title, "boxes": held, "edges": led}


def box(name: str, title: object, lines: Iterable[object], *, state: str = "", link: str = "", marked: bool = False) -> Part:
    """A box of a graph. name: by which edges know it. lines: below its title. marked: the one that the page is about."""
    told = [words(line) for line in lines if line]
    return {"id": name, "title": words(title), "lines": told, "state": words(state), "link": link, "marked": marked}


def link(shown: object, address: str) -> Part | str:
    """A cell that leads somewhere; a mere text without an address."""
    return {"text": words(shown), "link": address} if address else words(shown)


def pill(state: str) -> Part:
    """A cell with a state."""
    return {"state": words(state)}


def is_live(rows: Iterable[Sequence[object]]) -> bool:
    """Whether a row says that something goes on."""
    return any(one == pill("InProgress") for row in rows for one in row)


def moment(seconds: float) -> Part | str:
    """A cell with a time, in seconds since the epoch; "" for none."""
    return {"time": seconds} if seconds else ""


def cell(value: object) -> Any:
    """What a table or a fact may hold."""
    if isinstance(value, dict):
        return value
    return finite(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else words(value)


def words(value: object) -> str:
    """Somebody's text on one line: masked, cut, what cannot be seen spelled out."""
    return one_line(mask_text(str(value)[: LONGEST + 1]))[:LONGEST]
