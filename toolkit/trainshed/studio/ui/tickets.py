"""Addresses for what a browser opens by itself (a download, a report): good once, soon over, and for one thing alone."""

from __future__ import annotations

import secrets
import threading
import time

SECONDS = 60.0
_MOST = 1000


class Tickets:
    """What was asked for with the token, and not fetched yet."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[float, str, str]] = {}
        self._lock = threading.Lock()

    def give(self, key: str, path: str) -> str:
        """A word for one file of a run; "" as the path means its report."""
        now = time.monotonic()
        with self._lock:
            self._held = {word: one for word, one in self._held.items() if one[0] > now}
            while len(self._held) >= _MOST:
                del self._held[next(iter(self._held))]
            word = secrets.token_urlsafe(24)
            self._held[word] = (now + SECONDS, key, path)
        return word

    def take(self, word: str) -> tuple[str, str] | None:
        """(key, path) of a word that was given and not taken; None for any other."""
        with self._lock:
            held = self._held.pop(word, None)
        return held[1:] if held is not None and held[0] > time.monotonic() else None
