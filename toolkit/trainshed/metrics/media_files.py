"""Keeps what `metrics.log` is given beside numbers: files in `output/metrics/media`, and an index of them.

    media/4711-1790000000000.jsonl       one line a file, as of a metric: MetricName, Kind, File, Call, Timestamp, Step ...
    media/4711-1790000000000/12.png      what one process has written in its life

However often a script logs, the files are bounded in number and size: of a name that has too many steps every second one
goes, again and again, but never the latest. What goes, and why, is said once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress

from trainshed.base.files import remove, write_atomic
from trainshed.base.record import Record

from .media import LARGEST, MOST_AT_ONCE, WrongKind, content_of, loggables
from .points import tail_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .media import Loggable, MediaFile

    Taken = list[tuple[Loggable, MediaFile]]

FOLDER = "media"  # beside the folder of the numbers
MOST_STEPS = 100  # of a name
MOST_NAMES = 100
MOST_BYTES = 256 << 20  # of a process
MOST_OF_ALL = 1 << 30  # bytes of a host's folder, beyond which a new process keeps nothing
_MOST_SAID = 50  # lines on stderr
_SPARE_LINES = 1000  # of files that are gone, before the index is written anew


class _Step(Record):
    """What one call has written."""

    call: int
    files: tuple[str, ...]
    lines: tuple[str, ...]
    size: int


class _Series:
    """What is kept of one name: every `every`-th call, and the latest."""

    def __init__(self) -> None:
        self.calls, self.every = 0, 1
        self.kept: list[_Step] = []

    def passing(self) -> list[_Step]:
        """The latest, where it was kept for being that alone; it is no longer."""
        return [self.kept.pop()] if self.kept and (self.kept[-1].call - 1) % self.every else []

    def thinned(self) -> list[_Step]:
        """What goes when half of it has to."""
        self.every *= 2
        before, latest = self.kept[:-1], self.kept[-1]
        self.kept = [one for one in before if not (one.call - 1) % self.every] + [latest]
        return [one for one in before if (one.call - 1) % self.every]


class Album:
    """What one process keeps in a folder."""

    def __init__(self) -> None:
        self._place = ("", 0)
        self._base, self._number, self._size, self._lines = "", 0, 0, 0
        self._series: dict[str, _Series] = {}
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._full = False

    def take(self, name: str, value: Any) -> Taken:
        """A value as files that are to be; none of what others' code or a missing library could not make.

        Raises:
            TypeError: it is nothing that is kept.
        """
        found = loggables(name, value)
        taken = []
        for one in found[:MOST_AT_ONCE]:
            try:
                content = content_of(one)
            except WrongKind as error:
                raise TypeError(f"{name!r}: {error}") from error
            except Exception as error:  # a picture never ends a training
                self._say(f"{name!r} is not kept: {type(error).__name__}: {error}", f"{name} {type(error).__name__}")
                continue
            if len(content.data) <= LARGEST:
                taken.append((one, content))
            else:
                self._say(f"{name!r} is not kept: a file of it has more than {LARGEST >> 20} MiB", "large")
        if len(found) > MOST_AT_ONCE:
            self._say(f"{name!r}: the first {MOST_AT_ONCE} of {len(found)} are kept", "many")
        return taken

    def keep(self, folder: str, taken: dict[str, Taken], places: tuple[int | None, float | None, int | None]) -> None:
        """Writes them.

        Args:
            folder: of the job's numbers, "" outside of a job, where nothing is kept.
            places: step, epoch and rank.
        """
        if not folder:
            self._say("outside of a job only numbers are shown: nothing else is kept", "outside")
            return
        with self._lock:
            try:
                self._open(os.path.join(os.path.dirname(folder.rstrip("/")), FOLDER))
                for name, found in taken.items():
                    self._keep(name, found, places)
            except OSError as error:
                self._say(f"pictures and the like cannot be written beside {folder}: {error.strerror}", "disk")

    def _open(self, folder: str) -> None:
        """A place of this process's own; a child that was forked has its own, too."""
        if self._place == (folder, os.getpid()):
            return
        self._full = _size_below(folder) > MOST_OF_ALL
        base = f"{folder}/{os.getpid()}-{time.time_ns() // 1_000_000}"
        os.makedirs(base)
        self._place, self._base = (folder, os.getpid()), base
        self._number = self._size = self._lines = 0
        self._series = {}

    def _keep(self, name: str, taken: Taken, places: tuple[int | None, float | None, int | None]) -> None:
        series = self._series.get(name)
        if self._full or (series is None and len(self._series) >= MOST_NAMES):
            bound = f"{MOST_OF_ALL >> 30} GiB are there already" if self._full else f"there are {MOST_NAMES} names already"
            self._say(f"{name!r} is not kept: {bound}", "full")
            return
        series = self._series.setdefault(name, _Series())
        series.calls += 1
        gone = series.passing()
        series.kept.append(self._written(name, series.calls, taken, tail_of(time.time(), *places)))
        if len(series.kept) > MOST_STEPS:
            self._say(f"every second step of a name goes whenever it has more than {MOST_STEPS}, as {name!r} has", "steps")
            gone += series.thinned()
        self._forget(gone)
        self._make_room()

    def _written(self, name: str, call: int, taken: Taken, tail: str) -> _Step:
        files, lines, size = [], [], 0
        for one, content in taken:
            self._number += 1
            files.append(f"{self._number}.{content.ending}")
            _write(f"{self._base}/{files[-1]}", content.data)
            told = {"MetricName": name, "Kind": one.kind, "File": files[-1], "Call": call}
            told |= {key: text for key, text in (("Caption", one.caption), ("Cut", content.cut)) if text}
            lines.append(json.dumps(told)[:-1] + tail)
            size += len(content.data)
        _write(f"{self._base}.jsonl", "".join(lines).encode())
        self._lines += len(lines)
        self._size += size
        return _Step(call, tuple(files), tuple(lines), size)

    def _make_room(self) -> None:
        while self._size > MOST_BYTES:
            largest = max(self._series.values(), key=lambda one: sum(step.size for step in one.kept[1:]))
            if len(largest.kept) < 3:
                return
            self._say(
                f"every second step of what is largest goes whenever there are more than {MOST_BYTES >> 20} MiB", "size"
            )
            self._forget(largest.thinned())

    def _forget(self, gone: list[_Step]) -> None:
        for step in gone:
            self._size -= step.size
            for file in step.files:
                remove(f"{self._base}/{file}")
        lines = [line for one in self._series.values() for step in one.kept for line in step.lines]
        if gone and self._lines > 2 * len(lines) + _SPARE_LINES:
            write_atomic(f"{self._base}.jsonl", "".join(lines))
            self._lines = len(lines)

    def _say(self, text: str, cause: str) -> None:
        """Once a cause."""
        if cause not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(cause)
            print(f"trainshed: metrics.log: {text}", file=sys.stderr, flush=True)


def _write(path: str, data: bytes) -> None:
    """Adds to a file. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        if not path.endswith(".jsonl"):
            remove(path)
        raise
    finally:
        os.close(fd)


def _size_below(folder: str) -> int:
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # another process has just removed it
                found += os.lstat(f"{place}/{name}").st_size
    return found
