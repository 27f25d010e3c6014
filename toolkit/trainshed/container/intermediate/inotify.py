"""Which files of a folder have been written, at any depth: Linux's inotify, whose calls Python's library has not.

Formats and numbers: inotify(7), <sys/inotify.h>.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct

IN_CLOSE_WRITE, IN_MOVED_TO, IN_CREATE = 0x8, 0x80, 0x100
IN_Q_OVERFLOW, IN_IGNORED, IN_ISDIR = 0x4000, 0x8000, 0x40000000
_HEAD = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_libc = ctypes.CDLL(None, use_errno=True)


class InotifyWatch:
    """The files below `folder` that were closed after writing, or moved in, since the last call of `take`.

    Raises:
        OSError: the system has no watches left for this user.
    """

    def __init__(self, folder: str) -> None:
        self.fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise _error(folder)
        self.folders: dict[int, str] = {}
        self.known: list[str] = []  # files that were there, or came, before their folder was watched
        self._add(folder)

    def _add(self, folder: str) -> None:
        number = _libc.inotify_add_watch(self.fd, os.fsencode(folder), IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE)
        if number < 0:
            if not os.path.isdir(folder):  # gone again
                return
            raise _error(folder)
        self.folders[number] = folder
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                self._add(entry.path)
            elif entry.is_file(follow_symlinks=False):
                self.known.append(entry.path)

    def wait(self, other: int) -> bool:
        """Sleeps until something was written, or `other` can be read; whether the latter."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.register(other, select.POLLIN)
        return any(fd == other for fd, _ in poll.poll())

    def take(self) -> list[str]:
        """Paths in the order of their events, without repeats; a file may be gone or open again by now."""
        found, self.known = self.known, []
        while True:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                break
            while data:
                number, mask, _, length = _HEAD.unpack_from(data)
                name = os.fsdecode(data[_HEAD.size : _HEAD.size + length].rstrip(b"\0"))
                data = data[_HEAD.size + length :]
                if mask & IN_IGNORED:
                    self.folders.pop(number, None)
                elif number in self.folders:
                    path = f"{self.folders[number]}/{name}"
                    if mask & IN_ISDIR:
                        self._add(path)
                    elif not mask & IN_CREATE or _links(path) > 1:  # a hard link is created whole
                        found.append(path)
        found += self.known
        self.known = []
        return list(dict.fromkeys(found))


def _links(path: str) -> int:
    try:
        return os.lstat(path).st_nlink
    except OSError:
        return 0


def _error(folder: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), folder)
