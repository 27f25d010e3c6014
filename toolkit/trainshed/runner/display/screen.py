"""The screen of the person at the keyboard: the hosts' lines as they come, our own, and on a terminal one line of status."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable

from trainshed.base.errors import one_line, visible
from trainshed.base.files import open_unfollowed
from trainshed.base.secrets import mask_text
from trainshed.machine.streams import CONSOLE_BYTES, Console

_CLEAR = b"\r\x1b[2K"
REDRAW_SECONDS = 0.1  # at most one redrawing of the status in this time
SILENCE_SECONDS = 30.0  # without a terminal: a line of status after so long without any other
DRAIN_SECONDS = 5.0


class Screen:
    """Standard output and error. Never blocks; `flush` writes what can be written now."""

    def __init__(self) -> None:
        self.out, self.err = Console(1), Console(2)
        self.terminal = os.isatty(2) and os.environ.get("TERM") != "dumb"
        self.secrets: tuple[str, ...] = ()
        self._kept = -1
        self._status = ""
        self._shown = False
        self._last_output = self._last_drawn = time.monotonic()

    @property
    def full(self) -> bool:
        """Tells whether so much waits to be written that nothing more should be read."""
        return self.out.size + self.err.size >= CONSOLE_BYTES

    @property
    def waiting(self) -> list[int]:
        """Descriptors that are to be polled for writing."""
        return [console.fd for console in (self.out, self.err) if console.size and not console.closed]

    def lines(self, data: bytes, *, error: bool) -> None:
        """Whole lines of a host."""
        self._clear()
        (self.err if error else self.out).put(data)
        self._last_output = time.monotonic()

    def say(self, message: str) -> None:
        """A message of the runner, on standard error."""
        self._clear()
        lines = visible(mask_text(message, self.secrets)).rstrip("\n").split("\n")
        self._own("".join(f"trainshed: {line}\n" for line in lines))
        self._last_output = time.monotonic()
        self.flush()

    def block(self, text: str) -> None:
        """A block of text as it is, on standard error."""
        self._clear()
        self._own(mask_text(text, self.secrets).rstrip("\n") + "\n")

    def keep(self, path: str) -> None:
        """Also writes the runner's messages to this file from now on."""
        try:
            self._kept = open_unfollowed(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as error:  # costs the file, never the job
            if error.errno == errno.ELOOP:
                self.say(f"warning: no messages are kept in {path}: {error.strerror}")

    def _own(self, text: str) -> None:
        data = visible(text).encode("utf-8", "replace")
        self.err.put(data)
        if self._kept >= 0:
            try:
                os.write(self._kept, data)
            except OSError:
                pass

    def status(self, line: str | Callable[[], str]) -> None:
        """The status line: redrawn in place on a terminal; elsewhere a line after SILENCE_SECONDS without output.

        Args:
            line: the text, or what makes it, which is asked only when there is something to be shown.
        """
        now = time.monotonic()
        if not self.terminal:
            if now - self._last_output >= SILENCE_SECONDS:
                self.say(line if isinstance(line, str) else line())
            return
        if now - self._last_drawn < REDRAW_SECONDS or self.err.size:
            return
        self._last_drawn = now
        text = one_line(mask_text(line if isinstance(line, str) else line(), self.secrets))
        width = _columns()
        self._status = text if len(text) < width else text[: max(0, width - 2)] + "…"
        self.err.put(_CLEAR + self._status.encode("utf-8", "replace"))
        self._shown = True
        self.err.flush(False)

    def flush(self, ready: dict[int, bool] | None = None) -> None:
        """Writes what can be written. `ready`: descriptors that poll has just called writable."""
        for console in (self.out, self.err):
            console.flush(bool(ready and ready.get(console.fd)))

    def close(self) -> None:
        """Takes the status away and writes everything, waiting a while for a slow reader."""
        self._clear()
        for console in (self.out, self.err):
            console.drain(DRAIN_SECONDS)
        if self._kept >= 0:
            os.close(self._kept)
            self._kept = -1

    def _clear(self) -> None:
        if self._shown:
            self.err.put(_CLEAR)
            self.err.flush(False)  # before anything goes to the other descriptor
            self._shown = False


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80  # some terminals do not know their size
    except OSError:
        return 80
