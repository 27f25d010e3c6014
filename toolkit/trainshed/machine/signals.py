"""Signals to this process: as bytes in a pipe while a loop runs, as an exception or ignored before and after it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal
    from typing import Any
else:
    import _signal as signal  # `signal` is this and an `enum`, which takes longer to load than all that `train` needs of it

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
HELD_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # what people and schedulers stop programs with
_PYTHONS_OWN = (None, signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)
PASSED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


def name_of(number: int) -> str:
    """`SIGTERM` for 15, `signal 35` for one without a name.

    Handlers call it: it imports nothing, for they may interrupt the import of that very module.
    """
    names = (name for name in dir(signal) if name.startswith("SIG") and not name.startswith("SIG_"))
    return next((name for name in names if getattr(signal, name) == number), f"signal {number}")


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
        self._old: dict[int, Any] = {number: signal.signal(number, _note) for number in watched}
        self._late: list[int] = []

    def take(self) -> list[int]:
        """The signals that have come since the last call, in order."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []

    def hand_on(self, number: int) -> None:
        """Leaves a stop signal to the earlier handlers: it came too late for whoever reads the pipe."""
        self._late.append(number)

    def close(self) -> None:
        """Puts the earlier handlers back; they get the stop signals that nobody has taken from the pipe."""
        signal.set_wakeup_fd(self._old_fd)
        _put_back(self._old)
        late = [number for number in (*self._late, *self.take()) if number in HELD_SIGNALS]
        os.close(self.fd)
        os.close(self._write)
        if late and self._old[late[0]] not in _PYTHONS_OWN:
            signal.raise_signal(late[0])


def _note(_signal: int, _frame: object) -> None:
    """Nothing to do: Python has written the byte. Without a handler it would not."""


def _put_back(handlers: dict[int, Any]) -> None:
    """Installs earlier handlers again; None stands for one that Python did not install."""
    for number, handler in handlers.items():
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)


class Interrupted(BaseException):
    """A stop signal came outside the supervisor's loop. Not an Exception, so that no handler swallows it."""

    def __init__(self, number: int, when: str) -> None:
        super().__init__(f"stopped by {name_of(number)} {when}")
        self.number = number
        self.when = when


def hold_stops() -> None:
    """Has stop signals wait until a `Stops` takes them. For the first moments of a process: the kernel would drop them
    where it is process 1, and else end it without a word."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)


class Stops:
    """All stop signals of this process, for as long as the `with` block lasts: noted, or raised where that is asked for.

    Those that were held before the block (`hold_stops`) are held again after it: a job that has ended keeps its exit status.
    Other handlers may take its place for a while (`SignalPipe`, `stop_raises`).

    number: the first stop signal that was noted; 0 before.
    """

    def __init__(self) -> None:
        self.number = 0
        self._when = ""

    def __enter__(self) -> Stops:
        self._old: dict[int, Any] = {number: signal.signal(number, self._take) for number in HELD_SIGNALS}
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)
        return self

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        _put_back(self._old)

    def raising(self, when: str) -> _Raising:
        """A block in which the first stop signal raises `Interrupted`, at its start if it has come before.

        Further ones are noted, so that nothing interrupts the way out.

        Args:
            when: what the process is doing, for the message: "before the script was started".
        """
        return _Raising(self, when)

    def note(self, number: int) -> None:
        """Notes a stop signal that another handler has taken, for whoever asks later."""
        self.number = self.number or number

    def _take(self, number: int, frame: object) -> None:
        self.note(number)
        self.raise_once()

    def raise_from_now(self, when: str) -> None:
        """Raises the next stop signal, once; at once if one has been noted. "" ends that."""
        self._when = when
        if self.number:
            self.raise_once()

    def raise_once(self) -> None:
        """Raises `Interrupted` if that is asked for."""
        when, self._when = self._when, ""
        if when:
            raise Interrupted(self.number, when)


class _Raising:
    """See `Stops.raising`."""

    def __init__(self, stops: Stops, when: str) -> None:
        self._stops = stops
        self._when = when

    def __enter__(self) -> None:
        self._stops.raise_from_now(self._when)

    def __exit__(self, *_: object) -> None:
        self._stops.raise_from_now("")


class _StopHandler:
    """Handles stop signals by `handle` within the block; puts the earlier handlers back afterwards."""

    def __enter__(self) -> None:
        self.old: dict[int, Any] = {number: signal.signal(number, self.handle) for number in HELD_SIGNALS}

    def __exit__(self, *_: object) -> None:
        _put_back(self.old)

    def handle(self, number: int, frame: object) -> None:
        """Does nothing."""


class stop_raises(_StopHandler):
    """Raises `Interrupted` for stop signals within the block; PID 1 would ignore them otherwise."""

    def __init__(self, when: str) -> None:
        self.when = when

    def handle(self, number: int, frame: object) -> None:
        """Raises Interrupted."""
        raise Interrupted(number, self.when)
