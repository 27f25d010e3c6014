"""Which hosts live: each counts up a number of its own, which the others watch."""

from __future__ import annotations

import threading
from typing import Any

MISSED = 5  # signs of life that a host may be late with


class Life:
    """This host's signs of life, and those of others, on a thread of its own."""

    def __init__(self, store: Any, me: str, pause: float) -> None:
        self._store, self._me, self._pause = store, me, pause
        self._watched: frozenset[str] = frozenset()
        self._seen: dict[str, tuple[int, int]] = {}  # the last sign, and how often there was no newer one
        self._failed = ""
        self._over = threading.Event()
        self._store.add(f"beat/{me}", 1)
        self._thread = threading.Thread(target=self._beat, daemon=True, name="trainshed signs of life")
        self._thread.start()

    def watch(self, hosts: list[str]) -> None:
        """Looks after these. Raises RuntimeError: this host could not show its own signs."""
        if self._failed:
            raise RuntimeError(self._failed)
        watched = frozenset(hosts) - {self._me}
        for host in watched - self._watched:  # that it was lost, before this host has looked away, says nothing of now
            self._seen.pop(host, None)
        self._watched = watched

    def lost(self, host: str) -> bool:
        """Returns whether it has not shown a sign for as many turns of this host as it may be late. Turns, not seconds: they
        stand still, too, while this host does."""
        return self._seen.get(host, (0, 0))[1] > MISSED

    def stop(self) -> None:
        """No more signs."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(5)

    def _beat(self) -> None:
        while not self._over.wait(self._pause):
            try:
                self._store.add(f"beat/{self._me}", 1)
                for host in self._watched:
                    sign = self._store.add(f"beat/{host}", 0)
                    before, missed = self._seen.get(host, (-1, 0))
                    self._seen[host] = (sign, missed + 1 if sign == before else 0)
            except RuntimeError as error:
                self._failed = str(error) or "no connection"
                return
