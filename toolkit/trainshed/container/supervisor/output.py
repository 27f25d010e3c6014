"""The output of a run: the ranks' lines and our own messages, on consoles that may be slow or closed."""

from __future__ import annotations

import os
import select

from trainshed.machine.streams import CONSOLE_BYTES, Console, Terminal, same_file

from .spawn import PIPE_BYTES
from .watcher import FOREVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainshed.machine.streams import RankPipe

    from .rank import Rank

BATCH_SECONDS = 0.002  # unbuffered scripts write word by word: after a small read the next one waits this long
BATCH_BYTES = 1 << 15  # what counts as a small read
CONSOLE_GRACE = 10.0  # seconds to wait at the end for a console that does not take our lines
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class Output:
    """The consoles of a run and the streams that lead to them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """
        Args:
            say: prints a message; it may wait, so it is called only while the console takes it.
        """
        self._say = say
        self._unsaid: list[str] = []
        self._terminals = [Terminal(fd) for fd in (1, 2) if os.isatty(fd)]
        self.out = Console(1)
        self.err = self.out if same_file(1, 2) else Console(2)  # two writers would tear each other's lines
        self._consoles = {self.out, self.err}
        self.ranks: list[Rank] = []
        self._streams: list[RankPipe] = []
        self._batch_until = 0.0

    def add(self, rank: Rank) -> None:
        """Reads a rank's streams from now on."""
        self.ranks.append(rank)
        self._streams += [rank.out, rank.err]

    def last_heard(self) -> float:
        """When any rank last printed anything, in seconds since the start."""
        return max((stream.heard for stream in self._streams), default=0.0)

    # --- for the loop ---

    def descriptors(self, now: float) -> dict[int, int]:
        """Descriptors to poll, and for what. While consoles are full, the ranks' pipes are not read."""
        wanted = {console.fd: select.POLLOUT for console in self._consoles if console.size and not console.closed}
        if now >= self._batch_until and sum(console.size for console in self._consoles) < CONSOLE_BYTES:
            wanted.update((stream.fd, _READABLE) for stream in self._streams if stream.open)
        return wanted

    def pause(self, now: float) -> float:
        """Seconds until the pipes are read again after a small read."""
        return self._batch_until - now if now < self._batch_until else FOREVER

    def handle(self, ready: dict[int, int], now: float) -> None:
        """Reads and writes what a poll found ready."""
        taken = sum(stream.read(now) for stream in self._streams if stream.open and stream.fd in ready)
        if 0 < taken < BATCH_BYTES:
            self._batch_until = now + BATCH_SECONDS
        for console in self._consoles:
            console.flush(bool(ready.get(console.fd, 0) & select.POLLOUT))
        if self._unsaid:
            self._speak()

    # --- what is printed ---

    def say(self, message: str) -> None:
        """Prints a message between two lines of the script, or later while nobody reads; never waits."""
        self._unsaid.append(message)
        self._speak()

    def _speak(self) -> None:
        self.err.flush(False)
        while self._unsaid and not self.err.size and (self.err.closed or self.err.takes()):
            self._say(self._unsaid.pop(0))

    def take_last(self, rank: Rank, now: float) -> None:
        """Reads what a rank printed before it ended.

        At most what a pipe holds: a process that it left may hold the pipe open and go on writing.
        """
        for stream in (rank.out, rank.err):
            left = PIPE_BYTES
            while left > 0 and (taken := stream.read(now)):
                left -= taken
                self._flush()

    def finish(self, now: float) -> None:
        """Passes on what is left in the pipes, closes streams and logs, and prints all messages that wait."""
        for rank in self.ranks:
            for stream in (rank.out, rank.err):
                while stream.read(now):
                    self._flush()
                stream.close()
            rank.log.close()
        left = CONSOLE_GRACE
        for console in self._consoles:
            console.flush(False)
            left = console.drain(max(0.1, left))
            if console.waiting:  # what we print from here on must not wait for that reader, either
                console.give_up()
        for terminal in self._terminals:
            terminal.close(self.err.closed)
        for message in self._unsaid:
            self._say(message)

    def _flush(self) -> None:
        for console in self._consoles:
            console.flush(False)
