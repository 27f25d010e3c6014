"""The one engine of all charts: `static/charts.js`, which the web page loads and which each file of ours holds.

It is in the browser's language since the page's charts answer at once (lines on and off, smoothing, axes, groups, looking
closer), and a comparison that is a file has to do the same without a server. One that draws in Python would have to stand
beside it, and both would have to be kept alike. So a report holds two things for each chart: the numbers, as JSON, and what
is told without a script (title, notes, the last value of each line), which the engine replaces by the picture.

A file of ours still loads nothing and sends nothing, and runs nothing but these lines, whose hash is in its policy
(`markup.document`). What `figure` takes is described at the head of charts.js.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache

from trainshed.base.errors import visible
from trainshed.base.secrets import mask_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

STATIC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "static")
COLOURS = 25  # classes k0 to k24 of charts.css
FIGURE = '<div class="figure">'
_BESIDE_CODE = re.compile(r"^[ \t]*//.*\n|^[ \t]+|^\n|(?<=[;{])[ \t]+//.*$", re.MULTILINE)


@cache
def script(*names: str) -> str:
    """Files of the engine as one script, `charts` the first of them, without indents and comments."""
    return "".join(_BESIDE_CODE.sub("", _text(f"{name}.js")) for name in ("charts", *names))


@cache
def style() -> str:
    """The colours of all pages, and how charts look."""
    return re.sub(r"/\*.*?\*/|^\s+|\n", "", _text("charts.css"), flags=re.DOTALL | re.MULTILINE)


def figure(spec: Mapping[str, Any], told: str = "") -> str:
    """A chart in a page of ours.

    Args:
        spec: what it shows, as charts.js describes it; texts in it are masked.
        told: HTML that stands there without a script.
    """
    return f'{FIGURE}<div class="told">{told}</div><script type="application/json">{embedded(spec)}</script></div>'


def embedded(value: Any) -> str:
    """A value as JSON that may stand inside of a script element: masked, numbers as fine as a picture is."""
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def plain(value: Any) -> Any:
    """A value as JSON has it: texts masked and without what cannot be seen, numbers that are not finite as texts."""
    if isinstance(value, dict):
        return {_line(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return _fine(value)
    return _line(value) if isinstance(value, str) else value


def _fine(value: float) -> float | int | str:
    if value - value != 0:
        return "NaN" if value != value else "inf" if value > 0 else "-inf"
    near = float(f"{value:.10g}")
    return int(near) if near.is_integer() and abs(near) < 1e15 else near


def _line(text: str) -> str:
    return visible(mask_text(text[:2000]))


def _text(name: str) -> str:
    with open(f"{STATIC}/{name}", encoding="utf-8") as file:
        return file.read()
