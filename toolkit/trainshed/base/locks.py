"""Locks on files: the kernel lets go of them when the process that holds one ends, however it ends."""

from __future__ import annotations

import fcntl
import os

from .files import open_unfollowed


def hold(path: str) -> int | None:
    """A descriptor that holds a lock file; None while somebody else holds it. Raises OSError where it cannot be made."""
    fd = open_unfollowed(path, os.O_RDWR | os.O_CREAT)
    if locked(fd):
        return fd
    os.close(fd)
    return None


def is_held(path: str) -> bool:
    """Returns whether somebody holds a lock file."""
    try:
        fd = open_unfollowed(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return not locked(fd)
    finally:
        os.close(fd)


def locked(fd: int) -> bool:
    """Locks an open file, if nobody else has; whether that is so."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
