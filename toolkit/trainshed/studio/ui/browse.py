"""The files of a run, looked at from outside: no request leaves the run's folder, by no name and by no link.

A path is walked from the run's folder on, one name after the other, each opened below the one before it and never through a
link. So a script that puts a link where a folder was a moment ago gains nothing.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from trainshed.base.errors import TrainshedError, one_line

MOST = 2000  # entries of a folder that are listed
_PRIVATE = ("input", "config")  # hyperparameters and variables stand there in the clear


class NoFile(TrainshedError):
    """There is no such file in the run, or none that is shown."""


def listed(top: str, path: str) -> dict[str, Any]:
    """What is in a folder of a run.

    Args:
        path: names with slashes between them, "" for the run's folder itself.

    Raises:
        NoFile: it is not a folder of the run.
    """
    fd = _opened(top, path, os.O_DIRECTORY)
    try:
        names = sorted(os.listdir(fd))
        entries = []
        for name in names[:MOST]:
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            target = ""
            if stat.S_ISLNK(status.st_mode):
                try:
                    target = one_line(os.readlink(name, dir_fd=fd))
                except OSError:
                    continue
            entries.append(
                {"name": name if _sendable(name) else "", "shown": one_line(name), "kind": _kind(status.st_mode),
                 "link": target, "size": status.st_size, "changed": status.st_mtime}
            )  # fmt: skip
        return {"entries": entries, "more": max(0, len(names) - MOST)}
    finally:
        os.close(fd)


def opened(top: str, path: str) -> tuple[int, int]:
    """(descriptor, size) of a file of a run, for reading. Raises NoFile."""
    names = path.split("/")
    if any(names[at : at + 2] == list(_PRIVATE) for at in range(len(names))):
        raise NoFile("this file may hold secrets in the clear, and is not shown here")
    fd = _opened(top, path, os.O_NONBLOCK)  # a pipe must not wait
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise NoFile("this is not a file")
    return fd, status.st_size


def _opened(top: str, path: str, flags: int) -> int:
    names = path.split("/") if path else []
    if any(name in ("", ".", "..") or "\0" in name for name in names):
        raise NoFile("there is no such file in this run")
    try:
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for number, name in enumerate(names):
            more = flags if number == len(names) - 1 else os.O_DIRECTORY
            try:
                inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | more, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
    except (OSError, ValueError) as error:
        raise NoFile("there is no such file in this run") from error
    return fd


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "file" if stat.S_ISREG(mode) else "special"


def _sendable(name: str) -> bool:
    """Whether a name survives JSON: bytes that are no UTF-8 do not."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
