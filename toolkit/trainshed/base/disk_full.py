"""A disk that runs full: what fails meanwhile is not at fault, even where others have made room before it is looked at."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Hashable, Iterable

from .errors import TrainshedError

LEAST_ROOM = 4 << 20  # bytes; runners that end give back a part of this, and what fails before is not told from it


class Shortage:
    """Knows who has run while the disk of a folder was full.

    Args:
        folder: on the disk.
        unusable: what people are told about an OSError of the folder.
    """

    def __init__(self, folder: str, unusable: Callable[[OSError], TrainshedError]) -> None:
        self._folder, self._unusable = folder, unusable
        self._short: set[Hashable] = set()

    def look(self, running: Iterable[Hashable]) -> None:
        """Notes who runs if the disk is full now. Raises TrainshedError: the folder cannot be looked at."""
        if self._is_full():
            self._short.update(running)

    def has_met(self, running: Iterable[Hashable]) -> bool:
        """Returns whether the disk is full, or was while one of them ran. One that cannot be looked at counts as full."""
        try:
            return self._has_met(running)
        except TrainshedError:
            return True

    def refuse(self, *running: Hashable) -> None:
        """Raises TrainshedError where the disk is full, or was while one of them ran, or cannot be looked at."""
        if self._has_met(running):
            why = f"{os.strerror(errno.ENOSPC)}: {LEAST_ROOM >> 20} MiB must stay free for its own files"
            raise self._unusable(OSError(errno.ENOSPC, why, self._folder))

    def _has_met(self, running: Iterable[Hashable]) -> bool:
        return not self._short.isdisjoint(running) or self._is_full()

    def _is_full(self) -> bool:
        try:
            found = os.statvfs(self._folder)
        except OSError as error:
            raise self._unusable(error) from error
        return found.f_bavail * found.f_frsize < LEAST_ROOM
