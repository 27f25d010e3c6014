"""From a rank's pipe to the console and its log file: whole, tagged lines of valid UTF-8, in bounded memory.

All work is done on blocks of lines, never line by line, so that a chatty script costs the supervisor next to nothing.
"""

from __future__ import annotations

import os
import select
import stat
import time

from trainshed.base.files import open_unfollowed
from trainshed.base.secrets import mask_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READ_BYTES = 1 << 18
LONGEST_LINE = 1 << 20  # a longer one is passed on in pieces of this size
TAIL_BYTES = 1 << 16  # of each stream, kept for the failure report
FRAME_SECONDS = 1.0  # at most one frame of a progress bar in this time
CONSOLE_BYTES = 1 << 22  # that may wait for a slow console; beyond this the ranks have to wait, too
_TRACEBACK = b"Traceback (most recent call last)"


class Console:
    """Writes to one of our own descriptors without ever blocking the supervisor.

    A pipe that `poll` calls writable takes at least PIPE_BUF bytes, so writes of that size cannot block; setting
    O_NONBLOCK instead would change the descriptor for everyone who shares it, the user's shell included.
    """

    PIECE = 4096  # PIPE_BUF on Linux

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.waiting: list[bytes] = []
        self.size = 0
        self.closed = False
        try:
            self.blocks = not stat.S_ISREG(os.fstat(fd).st_mode)
        except OSError:
            self.closed = True

    def put(self, data: bytes) -> None:
        """Queues data; `flush` writes it."""
        if data and not self.closed:
            self.waiting.append(data)
            self.size += len(data)

    def flush(self, writable: bool) -> None:
        """Writes what can be written now. `writable`: whether a poll has just said so."""
        if self.closed or not self.waiting:
            return
        data = memoryview(b"".join(self.waiting) if len(self.waiting) > 1 else self.waiting[0])
        try:
            while data and (writable or self.takes()):
                data = data[os.write(self.fd, data[: self.PIECE] if self.blocks else data) :]
                writable = False
        except BlockingIOError:  # somebody else made it non-blocking
            pass
        except OSError:  # nobody reads any more (EPIPE) or the disk is full: the job goes on, the log files stay
            self.closed = True
            data = memoryview(b"")
        self.size = len(data)
        self.waiting = [bytes(data)] if data else []

    def takes(self) -> bool:
        """Returns whether a write of up to PIECE bytes would not have to wait."""
        if not self.blocks:
            return True
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        return bool(poll.poll(0))

    def drain(self, seconds: float) -> float:
        """Writes everything, waiting at most `seconds` for a reader that does not read; returns how many of them are left.

        Time in which this process was suspended does not count: the reader was, too.
        """
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        now = time.monotonic()
        while self.waiting and not self.closed and seconds > 0:
            size = self.size
            self.flush(bool(poll.poll(min(0.5, seconds) * 1000)))
            if self.size == size:  # `poll` may call a terminal writable that takes nothing
                time.sleep(0.01)
            before, now = now, time.monotonic()
            seconds -= min(0.6, now - before)
        return seconds

    def give_up(self) -> None:
        """Drops what waits, and leads the descriptor to /dev/null for all further writers of this process."""
        self.waiting = []
        self.size = 0
        self.closed = True
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, self.fd)
        os.close(null)


class Terminal:
    """One of our descriptors that is a terminal, opened a second time, non-blocking, for this process only.

    `poll` calls a terminal writable while it takes one byte, even if nobody reads it (a suspended `docker run -t`).
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.shared = -1
        try:
            own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:  # it belongs to another user
            return
        self.shared = os.dup(fd)
        os.dup2(own, fd, inheritable=False)
        os.close(own)

    def close(self, given_up: bool) -> None:
        """Puts the shared descriptor back, unless nobody reads it."""
        if self.shared >= 0 and not given_up:
            os.dup2(self.shared, self.fd)
        if self.shared >= 0:
            os.close(self.shared)
            self.shared = -1


def same_file(one: int, other: int) -> bool:
    """Returns whether two descriptors lead to the same pipe, terminal or file."""
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False


class LogFile:
    """A rank's log file: every byte, in order of arrival. A full disk ends the log, not the job.

    problem: why the file is missing or ends early, "" while it is whole.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self.problem = ""
        if not path:
            return
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self.fd = open_unfollowed(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            self.problem = f"no log file {path}: {error.strerror}"

    def write(self, data: bytes) -> None:
        """Appends data; closes the file where that fails."""
        if self.fd < 0:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError as error:
            self.problem = f"log file {self.path} ends early: {error.strerror}"
            self.close()

    def close(self) -> None:
        """Closes the file; safe to call again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def read_block(fd: int) -> bytes | None:
    """Reads what a non-blocking pipe holds, one block at most; None if that is nothing now, b"" if it has ended."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class RankPipe:
    """One pipe of one rank.

    heard: when anything last came, on the clock of `read`.
    traceback_at: when the last Python traceback began to arrive; None without one.
    """

    def __init__(self, fd: int, console: Console, log: LogFile, label: str, hidden: tuple[bytes, ...] = ()) -> None:
        """
        Args:
            label: tag of each line, "" for none.
            hidden: secrets to mask, longest first, with all that looks like one, wherever the stream leads to: console,
                log and tail.
        """
        self.fd = fd
        self.console = console
        self.log = log
        self.hidden = hidden
        # Of a line that is passed on in pieces so much is kept back: a secret may have begun there.
        self.begun = max((len(secret) - 1 for secret in hidden), default=0)
        self.begun_frame = max((len(secret) - 1 for secret in hidden if b"\r" in secret), default=0)
        self.prefix = f"[{label}] ".encode() if label else b""
        self.pending = b""
        self.tail = bytearray()
        self.tail_bytes = TAIL_BYTES + self.begun
        self.tail_cut = False
        self.traceback_at: float | None = None
        self.open = True
        self.listener: Callable[[bytes], None] | None = None  # gets whole lines as they are, without the tag
        self.last_frame = 0.0
        self.heard = 0.0

    def read(self, now: float) -> int:
        """Takes what the pipe holds, one block at most; returns how many bytes, 0 if there are none now or at all."""
        if not self.open:
            return 0
        block = read_block(self.fd)
        if not block:
            if block is not None:
                self.close()
            return 0
        self.heard = now
        self._take(block, now)
        return len(block)

    def _take(self, block: bytes, now: float) -> None:
        if _TRACEBACK in block or _TRACEBACK in self.tail[1 - len(_TRACEBACK) :] + block[: len(_TRACEBACK)]:
            self.traceback_at = now
        self.tail += block
        if len(self.tail) > 4 * self.tail_bytes:
            del self.tail[: -self.tail_bytes]
            self.tail_cut = True
        data = self.pending + block if self.pending else block
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) < LONGEST_LINE:
            if b"\r" in block:
                data = self._thin_open_line(data, now)
            self.pending = data
            return
        if not cut:
            data = mask_bytes(data, self.hidden)
            whole = _whole_characters(data[: max(0, len(data) - self.begun)]) or _whole_characters(data)
            self.pending = data[whole:]
            self._emit(data[:whole], b"\n")
            return
        self.pending = data[cut:]
        self._emit(data[:cut])

    def _thin_open_line(self, data: bytes, now: float) -> bytes:
        """Thins out a progress bar: shows its latest finished frame now and then, keeps only the frame being drawn."""
        data = mask_bytes(data, self.hidden)
        cut = data.rfind(b"\r", 0, max(0, len(data) - self.begun_frame))
        if cut < 0:
            return data
        done, rest = data[:cut], data[cut + 1 :]
        self.log.write(done + b"\r")
        if now - self.last_frame >= FRAME_SECONDS:
            frame = done.rpartition(b"\r")[2]
            if frame.strip():
                self.last_frame = now
                if self.listener:
                    self.listener(frame + b"\n")
                self._show(frame + b"\n")
        return rest

    def _emit(self, raw: bytes, end: bytes = b"") -> None:
        """Passes lines on, masked: as they are to the log, and with `end` to the console, where a line ends that was cut."""
        raw = mask_bytes(raw, self.hidden)
        self.log.write(raw)
        lines = raw + end if end else raw
        if self.listener:
            self.listener(lines)
        if b"\r" in lines:
            lines = b"\n".join(_last_frame(line) for line in lines.split(b"\n"))
        self._show(lines)

    def _show(self, lines: bytes) -> None:
        try:
            lines.decode()
        except UnicodeDecodeError:
            lines = lines.decode("utf-8", "backslashreplace").encode()
        if self.prefix:
            lines = self.prefix + lines[:-1].replace(b"\n", b"\n" + self.prefix) + b"\n"
        self.console.put(lines)

    def close(self) -> None:
        """Prints an unfinished last line and closes the pipe."""
        if not self.open:
            return
        if self.pending:
            self._emit(self.pending, b"\n")
            self.pending = b""
        self.open = False
        os.close(self.fd)

    def last_bytes(self) -> bytes:
        """The end of what came through, secrets masked."""
        tail = mask_bytes(bytes(self.tail), self.hidden)
        return tail[self.begun if self.tail_cut else 0 :][-TAIL_BYTES:]  # it may begin inside a secret


def _whole_characters(data: bytes) -> int:
    """The length of `data` without a character of UTF-8 that its end cuts in two."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            return len(data) - back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else len(data)
        if byte < 0x80:
            break
    return len(data)


def _last_frame(line: bytes) -> bytes:
    """What a terminal would show of a line with carriage returns: the last frame that has any text."""
    frames = [frame for frame in line.split(b"\r") if frame.strip()]
    return frames[-1] if frames else b""
