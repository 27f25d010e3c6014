"""`trainshed watch`: a run on the whole terminal, drawn anew every second; lines where there is no terminal."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping

from trainshed.base.errors import visible
from trainshed.runner.state.stored import Stored, load

from .dashboard import View, Watched, render
from .sparks import BARS, PLAIN

PAUSE = 1.0  # seconds between two frames
LINE_SECONDS = 10.0  # between two lines without a terminal
_OPEN, _SHUT = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen without a cursor, and back


def watch(
    run: Stored, state: Callable[[Stored], str], environ: Mapping[str, str], *, rank: int | None, once: bool
) -> Stored:
    """Shows a run until it is over; the run as it is then.

    Args:
        state: says how a run stands.
        rank: whose lines of the log are shown; None for all.
        once: one frame is enough.
    """
    watched = Watched(rank)
    bars = bars_for(sys.stdout.encoding, environ)
    if once or not sys.stdout.isatty() or environ.get("TERM", "dumb") == "dumb":
        return _lines(run, state, watched, bars, once)
    try:
        _put(_OPEN)
        while not _over(run):
            size = shutil.get_terminal_size()
            _put(frame(render(watched.look(run, state(run)), size.columns - 1, size.lines - 1, bars)))
            time.sleep(PAUSE)
            run = load(run.folder)
    finally:
        _put(_SHUT)
    _print(watched.look(run, state(run)), bars, 30)
    return run


def frame(lines: list[str]) -> str:
    """A frame over the one before it, which it needs not erase first."""
    return "\x1b[H" + "".join(f"{visible(line)}\x1b[K\r\n" for line in lines) + "\x1b[J"


def bars_for(encoding: str | None, environ: Mapping[str, str]) -> str:
    """The letters that curves are drawn with."""
    try:
        BARS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return PLAIN if environ.get("TERM") == "linux" else BARS


def _lines(run: Stored, state: Callable[[Stored], str], watched: Watched, bars: str, once: bool) -> Stored:
    """Without a terminal: a line now and then while something is new, and the whole at the end."""
    said, shown = "", -LINE_SECONDS
    while not once and not _over(run):
        if time.monotonic() - shown >= LINE_SECONDS:
            line = _line(watched.look(run, state(run)))
            if line != said:
                print(visible(line), flush=True)
            said, shown = line, time.monotonic()
        time.sleep(PAUSE / 4)
        run = load(run.folder)
    _print(watched.look(run, state(run)), bars, 40)
    return run


def _line(view: View) -> str:
    """One line: the state, and what the first metrics are."""
    rows = render(view, 300, 6)
    values = [f"{name} {curve.track.values[-1]:.4g}" for name, curve in list(view.curves.items())[:4]]
    return " · ".join([rows[0], *values])


def _print(view: View, bars: str, height: int) -> None:
    width = shutil.get_terminal_size((100, 40)).columns
    print("\n".join(visible(line) for line in render(view, max(40, width), height, bars)), flush=True)


def _over(run: Stored) -> bool:
    return (run.ended and not run.finishing) or run.lost or not (run.status or run.about)


def _put(text: str) -> None:
    data = memoryview(text.encode(sys.stdout.encoding or "utf-8", "replace"))
    while data:
        data = data[os.write(1, data) :]
