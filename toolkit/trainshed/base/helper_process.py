"""Helper processes that end with their input: they stay out of the ranks' way, and outlive signals."""

from __future__ import annotations

import os
import signal

_NICE = 5


def stand_back() -> None:
    """The ranks come first, and whoever signals the job does not mean this process: it ends with its input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)


def report(line: str) -> None:
    """Prints a line for `train`, which may be gone."""
    try:
        print(line, flush=True)
    except OSError:
        pass
