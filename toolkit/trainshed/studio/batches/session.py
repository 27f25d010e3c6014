"""A session of a batch, from the commands: what it says and keeps, and how another process ends it."""

from __future__ import annotations

import os
import signal
import sys
import time

from trainshed.base.errors import TrainshedError, one_line
from trainshed.base.secrets import mask_text

from .folder import Folder

PAUSE = 0.3  # seconds between two looks


class Log:
    """Says lines on standard error, and keeps them.

    Args:
        path: a file that gets the lines, too; a disk that takes no more costs the file alone.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def say(self, line: str) -> None:
        """One line of what happens."""
        text = f"trainshed: {one_line(mask_text(line))}\n"
        self.put(text)
        try:
            with open(self.path, "a", encoding="utf-8", errors="replace") as file:
                file.write(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + text)
        except OSError:
            pass

    def put(self, text: str) -> None:
        """Writes to standard error, which may be gone."""
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            pass


def end_worker(folder: Folder, *, kill: bool) -> None:
    """Asks the process that works in a folder to end, and waits until it has.

    Raises:
        TrainshedError: it is another user's.
    """
    asked = 0
    while pid := folder.worker:
        if pid > 0 and pid != asked:
            asked = pid
            try:
                os.kill(pid, signal.SIGTERM)
                if kill:
                    time.sleep(PAUSE)
                    os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
            except OSError:
                raise TrainshedError(
                    f"{folder.shown} is {folder.done} by another user", hint="stop it as that user"
                ) from None
        time.sleep(PAUSE)
