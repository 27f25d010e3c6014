"""Walks through folders of users: links are followed, and every walk comes to an end.

A link to a folder above itself is not entered. Links that lead to one folder many times over, which would double at
every level, are an error. Pipes, sockets and devices are told from files, so that nobody waits for them.
"""

from __future__ import annotations

import os
import stat

from trainshed.base.errors import TrainshedError
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator

MOST_REPEATS = 1000  # times that folders may be entered again, through other links
FILE, SPECIAL, GONE, UNREADABLE = "file", "special file", "gone", "unreadable"
_WILD = frozenset("*?[")


class FolderEntry(Record):
    """One thing below the folder that is walked through.

    Attributes:
        path: where it is.
        name: its path below the folder.
        kind: `FILE`; `SPECIAL` (a pipe, a socket, a device); `GONE` (a link to nothing, or a thing that went away
            meanwhile); `UNREADABLE` (a folder that cannot be listed).
        size: bytes of a file.
        reason: why a folder is unreadable.
    """

    path: str
    name: str
    kind: str
    size: int = 0
    reason: str = ""


def walk(folder: str, prune: Callable[[os.DirEntry[str], str], bool] = lambda *_: False) -> Iterator[FolderEntry]:
    """Everything below a folder but the folders themselves, in no particular order.

    Args:
        prune: called with an entry and its path below the folder; what it returns True for is left out, with all below.

    Raises:
        TrainshedError: links lead to the same folders more than `MOST_REPEATS` times.
    """
    trail = _Trail(folder)
    queue: list[tuple[str, str, _Above]] = [(folder, "", trail.top)]
    while queue:
        place, prefix, above = queue.pop()
        try:
            with os.scandir(place) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            kind = GONE if isinstance(error, (FileNotFoundError, NotADirectoryError)) and prefix else UNREADABLE
            yield FolderEntry(place, prefix.rstrip("/"), kind, reason=error.strerror or str(error))
            continue
        for entry in listed:
            name = f"{prefix}{entry.name}"
            if prune(entry, name):
                continue
            try:
                info = os.stat(entry.path)
            except OSError as error:
                gone = isinstance(error, (FileNotFoundError, NotADirectoryError)) or entry.is_symlink()
                yield FolderEntry(entry.path, name, GONE if gone else UNREADABLE, reason=error.strerror or str(error))
                continue
            if stat.S_ISDIR(info.st_mode):
                if (inner := trail.enter(info, above)) is not None:
                    queue.append((entry.path, f"{name}/", inner))
            else:
                kind = FILE if stat.S_ISREG(info.st_mode) else SPECIAL
                yield FolderEntry(entry.path, name, kind, info.st_size, "")


def match(pattern: str) -> Iterator[str]:
    """Absolute paths of the files that a pattern of `*`, `?`, `[...]` and `**` means, as `glob` reads it.

    `**` stands for any number of folders. Wildcards do not match names that begin with a dot.

    Args:
        pattern: an absolute path.

    Raises:
        TrainshedError: as `walk`.
    """
    parts = pattern.split("/")
    first = next((number for number, part in enumerate(parts) if not _WILD.isdisjoint(part)), len(parts))
    root = "/".join(parts[:first]) or "/"
    wanted = tuple(map(_compiled, parts[first:]))
    trail = _Trail(root)
    queue: list[tuple[str, int, _Above]] = [(root, 0, trail.top)]
    seen: set[tuple[str, int]] = set()
    while queue:
        place, at, above = queue.pop()
        if (place, at) in seen or at >= len(wanted):
            continue
        seen.add((place, at))
        last = at == len(wanted) - 1
        part, subtree = wanted[at], parts[first + at] == "**"
        if subtree and not last:
            queue.append((place, at + 1, above))
        try:
            with os.scandir(place) as entries:
                listed = list(entries)
        except OSError:
            continue
        for entry in listed:
            if not part.fullmatch(entry.name):
                continue
            try:
                info = os.stat(entry.path)
            except OSError:
                continue
            if stat.S_ISDIR(info.st_mode):
                onward = at if subtree else at + 1
                if onward < len(wanted) and (inner := trail.enter(info, above, onward)) is not None:
                    queue.append((entry.path, onward, inner))
            elif last and stat.S_ISREG(info.st_mode):
                yield entry.path


def _compiled(part: str) -> re.Pattern[str]:
    import fnmatch
    import re

    if part == "**":  # any name without a dot at its start
        return re.compile(r"[^.].*", re.DOTALL)
    hidden = "" if part.startswith(".") else r"(?!\.)"
    return re.compile(hidden + fnmatch.translate(part), re.DOTALL)


_Above = tuple[tuple[int, int], ...]  # device and inode of the folders above, and of the folder itself


class _Trail:
    """Which folders a walk has entered."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.entered: set[tuple[int, int, int]] = set()
        self.repeats = 0
        try:
            info = os.stat(folder)
            self.top: _Above = ((info.st_dev, info.st_ino),)
        except OSError:  # listing it will say why
            self.top = ()

    def enter(self, info: os.stat_result, above: _Above, level: int = 0) -> _Above | None:
        """The way to a folder below; None where it leads in a circle. Raises TrainshedError."""
        own = (info.st_dev, info.st_ino)
        if own in above:
            return None
        if (*own, level) in self.entered:
            self.repeats += 1
            if self.repeats > MOST_REPEATS:
                raise TrainshedError(
                    f"links below {self.folder} lead to the same folders more than {MOST_REPEATS:,} times",
                    hint="remove the links that lead in circles",
                )
        self.entered.add((*own, level))
        return (*above, own)
