"""Watchers that a run loads when they have something to do, and not while its ranks are waited for to start."""

from __future__ import annotations

import time

from .supervisor.watcher import FOREVER, Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .supervisor.watcher import Process, Supervised

A_WHILE = 0.5  # seconds: shorter jobs do without what is loaded then


class Late(Watcher):
    """Stands for a watcher until that is needed: after a while, at a line or at a signal that is for it.

    made: the watcher; None before.
    """

    def __init__(
        self,
        make: Callable[[], Watcher],
        *,
        after: float = FOREVER,
        signs: tuple[bytes, ...] = (),
        signals: tuple[int, ...] = (),
    ) -> None:
        """
        Args:
            after: seconds.
            signs: texts of which one is in each block of lines that is for it.
            signals: that it is there for.
        """
        self.made: Watcher | None = None
        self._make = make
        self._at = time.monotonic() + after if after < FOREVER else 0.0
        self._signs = signs
        self._signals = signals
        self._missed: list[Callable[[Watcher], None]] = []  # told when it is there

    def now(self) -> Watcher:
        """The watcher, loaded if it has not been."""
        if self.made is None:
            self.made = self._make()
            for event in self._missed:
                event(self.made)
        return self.made

    def _tell(self, event: Callable[[Watcher], None]) -> None:
        if self.made is not None:
            event(self.made)
        else:
            self._missed.append(event)

    def descriptors(self) -> dict[int, int]:
        return self.made.descriptors() if self.made is not None else {}

    def pause(self) -> float:
        if self.made is not None:
            return self.made.pause()
        return max(0.0, self._at - time.monotonic()) if self._at else FOREVER

    def turn(self, run: Supervised) -> None:
        if self.made is not None or 0.0 < self._at <= time.monotonic():
            self.now().turn(run)

    def busy(self) -> bool:
        return self.made is not None and self.made.busy()

    def own_processes(self) -> tuple[int, ...]:
        return self.made.own_processes() if self.made is not None else ()

    def run_over(self) -> None:
        if self.made is not None:
            self.made.run_over()

    def printed(self, rank: Process, lines: bytes) -> None:
        if self.made is not None:
            self.made.printed(rank, lines)
        elif any(sign in lines for sign in self._signs):
            self.now().printed(rank, lines)

    def signalled(self, number: int, grace: float) -> None:
        if number in self._signals:
            self.now()
        self._tell(lambda watcher: watcher.signalled(number, grace))

    def interrupted(self, why: str, number: int) -> None:
        self._tell(lambda watcher: watcher.interrupted(why, number))

    def interrupted_elsewhere(self, why: str, grace: float) -> None:
        self._tell(lambda watcher: watcher.interrupted_elsewhere(why, grace))

    def failed(self, why: str) -> None:
        self._tell(lambda watcher: watcher.failed(why))
