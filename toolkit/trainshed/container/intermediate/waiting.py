"""Files that wait for their upload, each held open, so that one that the script deletes meanwhile is not lost."""

from __future__ import annotations

import os
import resource
import stat
import threading

from .inotify import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_FOR_OTHERS = 128  # descriptors that S3's client may need


class UploadQueue:
    """A queue of files, oldest first; of a path only the newest file waits, as only that would stay on S3."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}  # path -> descriptor, -1 where the file is not held
        self._over = False
        self._changed = threading.Condition()
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._most = most - _FOR_OTHERS

    def add(self, paths: Iterable[str]) -> None:
        """Holds what is there and is a file."""
        for path in paths:
            fd = self._open(path)
            if fd is None:
                continue
            with self._changed:
                release(self._files.pop(path, -1))
                self._files[path] = fd
                self._changed.notify()

    def end(self) -> None:
        """Nothing will be added any more."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def take(self) -> tuple[str, int] | None:
        """The next file, as soon as there is one: its path and descriptor, -1 for none. None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._files or self._over)
            path = next(iter(self._files), None)
            return None if path is None else (path, self._files.pop(path))

    def _open(self, path: str) -> int | None:
        """A descriptor, -1 where the file is there and cannot be held, None where there is no file."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError:  # the upload says why
            return -1
        if stat.S_ISREG(os.fstat(fd).st_mode) and fd < self._most:
            return fd
        os.close(fd)
        return -1


def keep(watch: Watch, held: UploadQueue, over: int) -> None:
    """Holds what is written until `over` can be read; a thread of its own, so that no upload delays it."""
    try:
        while not watch.wait(over):
            held.add(watch.take())
        held.add(watch.take())
    finally:
        held.end()


def release(fd: int) -> None:
    """Lets a file go."""
    if fd >= 0:
        os.close(fd)
