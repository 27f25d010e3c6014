"""A stop signal that came before the script was started."""

from __future__ import annotations

import signal


class Interrupted(BaseException):
    """Raised where a stop signal ends a step before the script runs; not an Exception, so that nothing swallows it."""

    def __init__(self, number: int, when: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} {when}")
        self.number, self.when = number, when


class _StopHandler:
    """Within the block, stop signals are handled by `handle`; the earlier handlers come back afterwards."""

    STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __enter__(self) -> None:
        self.old = {number: signal.signal(number, self.handle) for number in self.STOPS}

    def __exit__(self, *_: object) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def handle(self, number: int, frame: object) -> None:
        """What to do with a stop signal: nothing."""


class stop_ignored(_StopHandler):
    """Within the block, stop signals do nothing: the outcome is being written and we end in a moment anyway."""


class stop_raises(_StopHandler):
    """Within the block, stop signals raise `Interrupted` (as PID 1 they would be ignored otherwise)."""

    def __init__(self, when: str) -> None:
        self.when = when

    def handle(self, number: int, frame: object) -> None:
        """Ends the step at hand."""
        raise Interrupted(number, self.when)
