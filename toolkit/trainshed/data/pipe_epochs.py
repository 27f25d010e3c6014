"""The pipes of a channel: one an epoch, `PATH_0`, `PATH_1`, ..., each to be read once, by one process.

Which epoch comes next is kept in a file beside the job's input, as Amazon's readers keep it (`PipeStateManager` of
sagemaker-tensorflow-extensions): a second dataset, or a second process after the first, goes on with the next pipe.
"""

from __future__ import annotations

import os
import select
import stat
import time

from .formats.errors import DataError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

_COME = 0.05  # seconds between two looks for a pipe
_SAY_AFTER = 10.0
_LOOK = 50  # milliseconds between two looks whether anybody wants more
_PIPE_BYTES = 1 << 20


class Enough(Exception):
    """Nobody wants more of an epoch."""


class Epochs:
    """The pipes of one channel.

    Args:
        path: of the pipes, without `_EPOCH`.
        seconds: how long to wait for a pipe that is not there.
    """

    def __init__(self, name: str, path: str, say: Callable[[str], None], seconds: float = 600.0) -> None:
        self._name, self._path, self._say, self._seconds = name, path, say, seconds
        base = os.path.dirname(os.path.dirname(os.path.dirname(path)))  # of /opt/ml/input/data/NAME
        self._state = f"{base}/pipe_state/.{name}-pipe_mode-state"
        self._next: int | None = None  # where the file cannot be written
        self._begun = False

    def open(self, over: threading.Event) -> tuple[str, Pipe]:
        """Path of the next epoch's pipe, and the pipe.

        Args:
            over: ends all waiting for it.

        Raises:
            DataError: it does not come.
            Enough: `over` is set.
        """
        epoch = self._take()
        path = f"{self._path}_{epoch}"
        started, said = time.monotonic(), False
        while not _is_pipe(path):
            waited = time.monotonic() - started
            if waited > self._seconds:
                raise DataError(
                    f"the pipe {path} did not come within {self._seconds:.0f} s",
                    hint=f"is {self._name} a channel in Pipe mode, and does whoever feeds it still run?",
                )
            if waited > _SAY_AFTER and not said:
                said = True
                self._say(f"epoch {epoch} of {self._name} waits for its pipe {path}")
            if over.wait(_COME):
                raise Enough
        return path, Pipe(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), over)

    def _take(self) -> int:
        """The number of the next epoch, which nobody else gets."""
        import fcntl

        if self._next is None:
            try:
                os.makedirs(os.path.dirname(self._state), exist_ok=True)
                fd = os.open(self._state, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            except OSError:
                self._next = 0
            else:
                with open(fd, "r+") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    text = file.read(20).strip()
                    epoch = int(text) if text.isdecimal() else 0
                    # What an earlier run has left says nothing about the pipes of this one.
                    if not self._begun and not _is_pipe(f"{self._path}_{epoch}") and _is_pipe(f"{self._path}_0"):
                        epoch = 0
                    self._begun = True
                    file.seek(0)
                    file.truncate()
                    file.write(str(epoch + 1))
                return epoch
        epoch, self._next = self._next, self._next + 1
        return epoch


class Pipe:
    """One epoch's pipe, open for reading."""

    def __init__(self, fd: int, over: threading.Event) -> None:
        self._fd, self._over = fd, over
        _widen(fd)
        self._poll = select.poll()
        # Before a writer has come nothing is to be seen here: the end of the data is told from that.
        self._poll.register(fd, select.POLLIN | select.POLLHUP)

    def read(self, size: int) -> bytes:
        """As many bytes; fewer at the end alone. Raises Enough when nobody wants them any more."""
        buffer = bytearray(size)
        at = self.readinto(memoryview(buffer), size)
        return bytes(memoryview(buffer)[:at]) if at < size else bytes(buffer)

    def readinto(self, view: memoryview, least: int) -> int:
        """Reads what is there; returns how many bytes, fewer than `least` at the end alone. Raises Enough as `read`."""
        at = 0
        while at < least:
            if self._over.is_set():
                raise Enough
            if not self._poll.poll(_LOOK):
                continue
            try:
                count = os.readv(self._fd, [view[at:]])
            except BlockingIOError:
                continue
            if not count:
                break
            at += count
        return at

    def close(self) -> None:
        """Closes it: the writer sees that, too."""
        os.close(self._fd)


def _is_pipe(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _widen(fd: int) -> None:
    import fcntl

    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[attr-defined]
    except (OSError, AttributeError):  # more than this user may have
        pass
