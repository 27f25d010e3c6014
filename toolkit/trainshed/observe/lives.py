"""From what ranks measured of their steps to spans of the ledger: what was done again, waited for, stalled. Pure.

A life is one process of a rank. Which of its steps had been made before follows from their numbers where the script's calls
of a Checkpointer tell them; else from when the checkpoint was made from which it went on: what an earlier life did after
that was lost. The later one of both counts as done again, so that no second's account changes afterwards.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right

from trainshed.base.record import Record

from .ledger import STEPS, Span
from .steps import Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

FULL = 1.0  # seconds of a window that was written because it was long enough
_CELLS = 256  # in which ranks are compared with each other
_LEAST_CELL = 2.0  # seconds


class Life(Record):
    """One process of a rank. Times are seconds since 1970; 0 for what is not known.

    windows: its steps.
    began: when it started. imported: seconds in which it looked for modules.
    ready: when its first step itself began. first: when that ended.
    resumed: the number of the step from which it went on, by its Checkpointer; None where that says nothing.
    saved: when the newest checkpoint was made that it found, 0 for none; None where nobody knows.
    apart: whether its ranks wait for each other by design: stages of a pipeline.
    """

    windows: tuple[Window, ...]
    began: float = 0.0
    imported: float = 0.0
    ready: float = 0.0
    first: float = 0.0
    resumed: int | None = None
    saved: float | None = None
    apart: bool = False

    @property
    def begin(self) -> float:
        """When its steps began, the first one included where that is known."""
        window = self.windows[0]
        return self.ready or self.first or window.time - window.seconds

    @property
    def end(self) -> float:
        """When its last step ended."""
        return self.windows[-1].time


def with_tail(life: Life, until: float) -> Life:
    """The same life with the steps that a killed process had no time to tell: at its usual pace, up to one window.

    A process that ends by itself tells of its last steps in a shorter window.

    Args:
        until: when it was over.
    """
    last = life.windows[-1]
    rest = min(until - last.time, last.seconds)
    steps = int(rest * last.steps / last.seconds) if last.seconds else 0
    if steps < 1 or last.seconds < FULL:
        return life
    at = None if last.at is None else last.at + steps
    told = Window(time=last.time + rest, step=0, steps=steps, seconds=rest, longest=0.0, phases=_scaled(last, rest), at=at)
    return life.replace(windows=(*life.windows, told))


def _scaled(window: Window, seconds: float) -> dict[str, float]:
    return {name: spent * seconds / window.seconds for name, spent in window.phases.items()}


def spans_of(lives: Iterable[Life], slow: Sequence[float] = ()) -> list[Span]:
    """The spans of one rank.

    Args:
        lives: of the rank, in any order.
        slow: seconds of each window, life by life, that were spent waiting for a slower rank; absent for none.
    """
    spans, highest, waits = [], 0.0, iter(slow)
    history: list[tuple[float, float]] = []  # (time, position) at the ends of windows
    for life in sorted(lives, key=lambda one: one.end):
        places = _positions(life, _base(life, history, highest))
        spans += _before_steps(life, places[0], highest)
        at = 0.0
        for number, window in enumerate(life.windows):
            begin = max(at, window.time - window.seconds)
            done_before = _part_below(highest, places[number + 1], places[number + 2])
            spans += _within(window, begin, done_before, next(waits, 0.0))
            at = max(at, window.time)
        history += _history(life, places)
        highest = max(highest, places[-1])
    return spans


def _base(life: Life, history: list[tuple[float, float]], highest: float) -> float:
    """The position from which a life goes on: how many steps the job had made when its checkpoint was made."""
    if life.resumed is not None:
        return float(life.resumed)
    if life.saved is None or not history:
        return highest
    return position_at(history, life.saved)


def position_at(history: Sequence[tuple[float, float]], moment: float) -> float:
    """How many steps had been made at a moment; between two known ones, in proportion."""
    number = bisect_right([time for time, _ in history], moment)
    if number == 0:
        return 0.0
    if number == len(history):
        return history[-1][1]
    (before, low), (after, high) = history[number - 1], history[number]
    if high < low:  # a new life began meanwhile, and nothing was saved in it
        return low
    return low + (high - low) * (moment - before) / (after - before)


def _positions(life: Life, base: float) -> list[float]:
    """Before the first step, after it (where it is in no window), and after each window."""
    numbered = [window.at for window in life.windows if window.at is not None]
    if len(numbered) == len(life.windows) and numbered[-1] > base:
        start = max(base, numbered[0] - life.windows[0].steps)
        return [base, start, *map(float, numbered)]
    places = [base, base + bool(life.first)]
    for window in life.windows:
        places.append(places[-1] + window.steps)
    return places


def _history(life: Life, places: list[float]) -> list[tuple[float, float]]:
    return [(life.begin, places[0]), *zip((window.time for window in life.windows), places[2:], strict=True)]


def _part_below(highest: float, low: float, high: float) -> float:
    """Which part of the steps from `low` to `high` had been made before."""
    if high <= low:
        return 1.0 if high <= highest and low < highest else 0.0
    return min(1.0, max(0.0, (highest - low) / (high - low)))


def _before_steps(life: Life, base: float, highest: float) -> list[Span]:
    if not 0 < life.began <= life.ready <= life.first:
        return []
    imported = min(life.ready, life.began + life.imported)
    usual = life.windows[0].seconds / life.windows[0].steps
    begin = max(life.ready, life.first - usual)
    return [
        Span("importing", life.began, imported),
        Span("loading", imported, life.ready),
        Span("compiling", life.ready, begin),
        Span("again" if highest > base else STEPS, begin, life.first),
    ]


def _within(window: Window, begin: float, done_before: float, slow: float) -> list[Span]:
    """A window's parts one after the other: where in it they lay, nobody knows."""
    shares = {"checkpoint": window.phases.get("checkpoint", 0.0), "data": window.phases.get("data", 0.0)}
    shares["slow_rank"] = min(slow, window.phases.get("communication", 0.0))
    rest = max(0.0, window.seconds - sum(shares.values()))
    shares |= {"again": rest * done_before, STEPS: rest * (1.0 - done_before)}
    total = sum(shares.values())
    spans, at = [], begin
    for name, seconds in shares.items():
        end = at + (window.time - begin) * seconds / total if total else at
        if seconds:
            spans.append(Span(name, at, end))
        at = end
    return spans


# --- who waits for whom ---


def slow_waits(ranks: Mapping[Any, Sequence[Life]]) -> dict[Any, list[float]]:
    """By rank, for each window of its lives in order, the seconds that it waited longer than the rank that waited least.

    What all ranks wait is the exchange itself. What the others wait beyond that is for the slowest, which waits least.

    Args:
        ranks: of the whole job, whose clocks agree; each rank's lives in any order.
    """
    ordered = {rank: sorted(lives, key=lambda one: one.end) for rank, lives in ranks.items()}
    everything = [window for lives in ordered.values() for life in lives for window in life.windows]
    if len(ranks) < 2 or not everything or any(life.apart for lives in ordered.values() for life in lives):
        return {}
    begin = min(window.time - window.seconds for window in everything)
    end = max(window.time for window in everything)
    width = max(_LEAST_CELL, (end - begin) / _CELLS)
    edges = [begin + width * number for number in range(int((end - begin) / width) + 2)]
    waited = {rank: _in_cells(lives, edges) for rank, lives in ordered.items()}
    least = [min(filter(_known, cell), default=0.0) for cell in zip(*waited.values(), strict=True)]
    return {rank: _in_windows(ordered[rank], cells, least, edges) for rank, cells in waited.items()}


def _known(value: float) -> bool:
    return value >= 0


def _in_cells(lives: Sequence[Life], edges: Sequence[float]) -> list[float]:
    """Seconds of each cell that a rank waited for others, for a whole cell; -1 where its steps do not cover most of it."""
    waited, covered = [0.0] * (len(edges) - 1), [0.0] * (len(edges) - 1)
    for life in lives:
        for window in life.windows:
            share = window.phases.get("communication", 0.0) / window.seconds if window.seconds else 0.0
            for cell, seconds in _overlaps(window, edges):
                waited[cell] += share * seconds
                covered[cell] += seconds
    widths = [after - before for before, after in itertools.pairwise(edges)]
    return [
        seconds * width / part if part >= 0.5 * width else -1.0
        for seconds, part, width in zip(waited, covered, widths, strict=True)
    ]


def _in_windows(
    lives: Sequence[Life], cells: Sequence[float], least: Sequence[float], edges: Sequence[float]
) -> list[float]:
    found = []
    for life in lives:
        for window in life.windows:
            over = 0.0
            for cell, seconds in _overlaps(window, edges):
                over += max(0.0, cells[cell] - least[cell]) * seconds / (edges[cell + 1] - edges[cell])
            found.append(over)
    return found


def _overlaps(window: Window, edges: Sequence[float]) -> list[tuple[int, float]]:
    """The cells in which a window lies, each with its seconds there."""
    begin, end = window.time - window.seconds, window.time
    first = max(0, bisect_right(edges, begin) - 1)
    last = min(len(edges) - 1, bisect_left(edges, end))
    return [
        (cell, seconds)
        for cell in range(first, last)
        if (seconds := min(end, edges[cell + 1]) - max(begin, edges[cell])) > 0
    ]
