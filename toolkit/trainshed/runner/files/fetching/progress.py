"""How far fetching is: bytes, rate, time left."""

from __future__ import annotations

import threading
import time
from collections import deque

from trainshed.base.units import duration, size

WINDOW = 10.0  # seconds over which the rate is taken
EVERY = 0.5  # seconds between two points of it


class TransferProgress:
    """Counted by many threads, shown by one.

    Args:
        what: is fetched. files, bytes: how many, -1 where sizes are not known.
    """

    def __init__(self, what: str, files: int, total: int) -> None:
        self.what, self.files, self.total = what, files, total
        self.done = self.finished = 0
        self.problem = ""  # the last one that may pass
        self._lock = threading.Lock()
        self._points: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self._here = 0  # bytes that needed no fetching

    def came(self, count: int, *, here: bool = False) -> None:
        """Bytes have come; `here`: they were on this machine already. Negative: they have to come again."""
        with self._lock:
            self.done += count
            self._here += count if here else 0
            if not here:
                self.problem = ""

    def finish(self) -> None:
        """One more file is whole."""
        with self._lock:
            self.finished += 1

    def note(self, problem: str) -> None:
        """Something went wrong, and is tried again."""
        self.problem = problem

    def line(self) -> str:
        """One line for a person."""
        now = time.monotonic()
        with self._lock:
            came = self.done - self._here
            if now - self._points[-1][0] >= EVERY:
                self._points.append((now, came))
            while len(self._points) > 2 and now - self._points[0][0] > WINDOW:
                self._points.popleft()
            since, before = self._points[0]
            rate = (came - before) / max(now - since, 1e-3)
        total = f" of {size(self.total)}" if self.total >= 0 else ""
        parts = [f"{self.what}: {size(self.done)}{total}"]
        if self.files > 1:
            parts.append(f"{self.finished:,} of {self.files:,} files")
        if rate > 0:
            parts.append(f"{size(rate)}/s")
        if rate > 0 and self.total >= 0 and now - since >= 1:  # before, it would be a guess
            parts.append(f"{duration(max(0.0, (self.total - self.done) / rate))} left")
        if self.problem:
            parts.append(f"trying again: {self.problem}")
        return " · ".join(parts)
