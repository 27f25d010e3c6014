"""Signals to this process: as bytes in a pipe while a loop runs, as an exception or ignored before and after it."""

from __future__ import annotations

import os
import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PASSED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


class SignalPipe:
    """Stop signals, SIGUSR1, SIGUSR2 and SIGCHLD as bytes in a pipe, from construction to `close`.

    fd: the end to poll; readable while signals wait.

    Raises:
        ValueError: this is not the main thread.
        OSError: there are no file descriptors left.
    """

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        watched = (*STOP_SIGNALS, *PASSED_SIGNALS, signal.SIGCHLD)
        self._old = {number: signal.signal(number, _note) for number in watched}

    def take(self) -> list[int]:
        """The signals that have come since the last call, in order."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Puts the earlier handlers back."""
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        os.close(self.fd)
        os.close(self._write)


def _note(_signal: int, _frame: object) -> None:
    """Nothing to do: Python has written the byte. Without a handler it would not."""


class Interrupted(BaseException):
    """A stop signal came outside the supervisor's loop. Not an Exception, so that no handler swallows it."""

    def __init__(self, number: int, when: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} {when}")
        self.number = number
        self.when = when


class _StopHandler:
    """Handles stop signals by `handle` within the block; puts the earlier handlers back afterwards."""

    STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __enter__(self) -> None:
        self.old = {number: signal.signal(number, self.handle) for number in self.STOPS}

    def __exit__(self, *_: object) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def handle(self, number: int, frame: object) -> None:
        """Does nothing."""


class stop_ignored(_StopHandler):
    """Ignores stop signals within the block, e.g. while the outcome is being written."""


class stop_raises(_StopHandler):
    """Raises `Interrupted` for stop signals within the block; PID 1 would ignore them otherwise."""

    def __init__(self, when: str) -> None:
        self.when = when

    def handle(self, number: int, frame: object) -> None:
        """Raises Interrupted."""
        raise Interrupted(number, self.when)
