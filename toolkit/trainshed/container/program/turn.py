"""One `train` at a time works in a folder: hosts of a job that are processes of one machine share folders."""

from __future__ import annotations

import os
import time

from trainshed.base.errors import ProgramError
from trainshed.base.files import flocks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SAY_AFTER = 3.0  # seconds until the user hears who is waited for
SAY_EVERY = 30.0
_LOOK_EVERY = 0.1


class Turn:
    """Use in a `with` block: its start waits until nobody else is in such a block for this folder.

    The lock lies on the folder itself: there is no file for it that another user could make, or have us make.

    Args:
        folder: must exist.
        what: what is to be done there, for messages: "installing requirements.txt".
        seconds: how long to wait at most.
        say: prints a line for the user.
        look: called again and again while it waits; what it raises ends the wait.
    """

    def __init__(
        self,
        folder: str,
        what: str,
        seconds: float,
        say: Callable[[str], None],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._look = look
        self._folder = folder
        self._what = what
        self._seconds = seconds
        self._say = say

    def __enter__(self) -> float:
        """Waits.

        Returns:
            The seconds that are left of the limit.

        Raises:
            ProgramError: the limit is over; says who is in the way.
        """
        import fcntl

        try:
            self._fd = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # the work itself will say what is wrong with the folder
            self._fd = -1
            return self._seconds
        start = time.monotonic()
        say_at = SAY_AFTER
        try:
            while True:
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    pass
                except OSError:  # a file system without locks
                    return self._seconds
                else:
                    return max(0.1, self._seconds - round(time.monotonic() - start, 1))
                self._look()
                waited = time.monotonic() - start
                if waited >= self._seconds:
                    raise ProgramError(
                        f"{self._what} could not begin within {self._seconds:g} s: "
                        f"{self._holder()} holds the lock of {self._folder}",
                        hint="end that process if it hangs; trainshed_install_timeout_seconds sets the limit",
                    )
                if waited >= say_at:
                    say_at += SAY_EVERY
                    self._say(
                        f"{self._what} waits for {self._holder()}, which holds the lock of {self._folder} "
                        f"({waited:.0f} s of {self._seconds:g} s)"
                    )
                time.sleep(min(_LOOK_EVERY, self._seconds - waited))
        except BaseException:
            os.close(self._fd)
            raise

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _holder(self) -> str:
        """Who has the lock."""
        inode = str(os.fstat(self._fd).st_ino)
        try:
            pid = next(pid for pid, place in flocks() if place.rpartition(":")[2] == inode)
            with open(f"/proc/{pid}/comm") as file:
                return f"process {pid} ({file.read().strip()})"
        except (OSError, StopIteration):
            return "another process"
