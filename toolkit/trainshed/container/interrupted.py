"""A stop signal that came before the script was started."""

from __future__ import annotations

import signal


class Interrupted(BaseException):
    """Raised where a stop signal ends a step before the script runs; not an Exception, so that nothing swallows it."""

    def __init__(self, number: int, when: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} {when}")
        self.number, self.when = number, when


class stop_raises:
    """Within the block, stop signals raise `Interrupted` (as PID 1 they would be ignored otherwise)."""

    def __init__(self, when: str) -> None:
        self.when = when

    def __enter__(self) -> None:
        def raise_it(number: int, _frame: object) -> None:
            raise Interrupted(number, self.when)

        stops = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self.old = {number: signal.signal(number, raise_it) for number in stops}

    def __exit__(self, *_: object) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
