"""Curves of one line of text, and text cut to a terminal's width."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence

from trainshed.base.errors import one_line

BARS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-~=+*#"  # for terminals that have only ASCII
ODD = "!"  # a column with values that are not finite


def spark(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """A curve as columns of text: the mean of what falls into each, from the least to the most of all."""
    count = len(values)
    if not count or width < 1:
        return ""
    columns = min(width, count)
    edges = [count * number // columns for number in range(columns + 1)]
    means: list[float | None] = []
    for start, end in itertools.pairwise(edges):
        part = values[start:end]
        mean = sum(part) / len(part)
        means.append(mean if mean - mean == 0 else None)
    known = [mean for mean in means if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    span = high - low
    last = len(bars) - 1

    def bar(mean: float | None) -> str:
        if mean is None:
            return ODD
        return bars[round((mean - low) / span * last)] if span > 0 else bars[0]

    return "".join(map(bar, means))


def cut(text: str, width: int) -> str:
    """A text on one line of at most `width` columns; wide letters take two."""
    text = one_line(text)
    if len(text) <= width and text.isascii():
        return text
    used = 0
    kept: list[str] = []
    for letter in text:
        used += 0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if used > width:
            return "".join(kept)
        kept.append(letter)
    return text
