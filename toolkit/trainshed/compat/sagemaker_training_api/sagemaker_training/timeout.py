"""A time limit for a block of code."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class TimeoutError(Exception):
    """The time limit has passed."""


@contextmanager
def timeout(seconds: float = 0, minutes: float = 0, hours: float = 0) -> Iterator[None]:
    """Raises TimeoutError in the block after the sum of the three; main thread only."""
    limit = seconds + 60 * minutes + 3600 * hours

    def over(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"timed out after {limit} seconds")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
