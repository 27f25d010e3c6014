"""How a pipeline stands: a table with what each step needs, the same as JSON, and a picture (SVG)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from trainshed.base.errors import one_line
from trainshed.base.secrets import mask_text
from trainshed.base.units import duration
from trainshed.studio.batches.folder import COMPLETED, FAILED, IN_PROGRESS, STOPPED

from .steps_folder import SKIPPED

WAITING = "Waiting"
_COLOURS = {COMPLETED: "#2e7d32", FAILED: "#c62828", STOPPED: "#ef6c00", SKIPPED: "#757575", IN_PROGRESS: "#1565c0"}
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _EDGE = 190, 54, 60, 22, 20


@dataclass(frozen=True)
class Box:
    """A step as it is shown. seconds: it took, or has taken so far. run: its folder, report: its page, "" for none."""

    name: str
    kind: str
    needs: tuple[str, ...]
    state: str
    seconds: float
    detail: str = ""
    run: str = ""
    report: str = ""
    cached: bool = False

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {**vars(self), "needs": list(self.needs)}

    @property
    def words(self) -> str:
        """`completed in 3 s, reused`."""
        took = f" {duration(self.seconds)}" if self.seconds and self.state != WAITING else ""
        return f"{_SPOKEN.get(self.state, self.state.lower())}{took}{', reused' if self.cached else ''}"


_SPOKEN = {IN_PROGRESS: "running"}


def table(boxes: Sequence[Box]) -> str:
    """A line for each step; what it needs stands after `<-`."""
    rows = [("STEP", "KIND", "STATE", "NEEDS", "")]
    for box in boxes:
        needs = f"<- {', '.join(box.needs)}" if box.needs else "-"
        rows.append((box.name, box.kind, box.words, needs, box.detail or box.run))
    shown = [tuple(one_line(mask_text(cell))[:160] for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
    return "".join(f"{line}\n" for line in lines)


def picture(name: str, boxes: Sequence[Box]) -> str:
    """An SVG: steps from left to right, each right of all that it needs; a click leads to a run's report."""
    level: dict[str, int] = {}
    for box in boxes:
        level[box.name] = max((level[one] + 1 for one in box.needs if one in level), default=0)
    rows: dict[int, int] = {}
    place: dict[str, tuple[int, int]] = {}
    for box in boxes:
        row = rows.setdefault(level[box.name], 0)
        rows[level[box.name]] += 1
        place[box.name] = (_EDGE + level[box.name] * (_WIDTH + _GAP_X), _EDGE + 24 + row * (_HEIGHT + _GAP_Y))
    width = _EDGE + (max(rows, default=0) + 1) * (_WIDTH + _GAP_X)
    height = _EDGE + 24 + max(rows.values(), default=1) * (_HEIGHT + _GAP_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{_EDGE}" y="24" font-weight="bold">{_safe(name)}</text>',
    ]
    for box in boxes:
        x, y = place[box.name]
        for need in box.needs:
            if need in place:
                a, b = place[need]
                start, end = f"{a + _WIDTH},{b + _HEIGHT // 2}", f"{x},{y + _HEIGHT // 2}"
                middle = (a + _WIDTH + x) // 2
                curve = f"M{start} C{middle},{b + _HEIGHT // 2} {middle},{y + _HEIGHT // 2} {end}"
                parts.append(f'<path d="{curve}" fill="none" stroke="#999"/>')
    for box in boxes:
        x, y = place[box.name]
        colour = _COLOURS.get(box.state, "#bbbbbb")
        drawn = (
            f"<g><title>{_safe(box.detail or box.kind)}</title>"
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="white" '
            f'stroke="{colour}" stroke-width="2"/><text x="{x + 10}" y="{y + 22}" font-weight="bold">'
            f'{_safe(box.name)}</text><text x="{x + 10}" y="{y + 42}" fill="{colour}">{_safe(box.words)}</text></g>'
        )
        parts.append(f'<a href="{_safe(box.report)}">{drawn}</a>' if box.report else drawn)
    return "\n".join([*parts, "</svg>", ""])


def _safe(text: str) -> str:
    return escape(one_line(mask_text(text)), quote=True)
