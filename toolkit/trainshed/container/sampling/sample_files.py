"""The files of samples of one host, a minute each, held within a bound.

The minute that is being written is whole. What older ones may hold together is bounded: where they hold more, every
second sample of all of them goes, so that a run of days has the same density from its start to its end.
"""

from __future__ import annotations

import os

from trainshed.base.files import remove
from trainshed.observe.system import FOLDER, file_of, files_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_BYTES = 16 << 20  # of a host
_MINUTE = 60
_LONGEST_RUN = float(1 << 32)  # seconds


class SampleFiles:
    """Files below a folder; `write` may raise OSError, and can be called again afterwards.

    Args:
        folder: the profiler's.
        number: of this host, from 1.
        interval: seconds from sample to sample.
        most: bytes of all files but the newest.
    """

    def __init__(self, folder: str, number: int, interval: float, most: int = MOST_BYTES) -> None:
        self._folder, self._number, self._most = folder, number, most
        self._interval = interval
        self._width = interval  # one sample is kept of each period of this length, in seconds
        self._kept = -1  # the number of the period that the last sample which was kept is of
        self._path = ""
        self._minute = -1
        self._fd = -1
        self._written = 0  # bytes of the open file
        self._older = -1  # bytes of all others, -1 until somebody has looked

    def write(self, text: bytes, now: float) -> None:
        """Appends one sample.

        Args:
            now: seconds since 1970, when it was taken.
        """
        minute = int(now) // _MINUTE
        if minute != self._minute or self._fd < 0:
            self._next(minute)
        written = 0
        try:
            while written < len(text):
                written += os.write(self._fd, text[written:])
        except OSError:
            os.ftruncate(self._fd, self._written)  # half a line would spoil the next one
            raise
        self._written += written

    def close(self) -> None:
        """No more samples come."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _next(self, minute: int) -> None:
        self.close()
        if self._older >= 0 and self._path:
            self._older += self._thin(self._path)
        self._path = f"{self._folder}/{FOLDER}/{file_of(minute * _MINUTE, self._number)}"
        if self._older < 0:  # an earlier life of the job may have left files
            self._older = sum(os.path.getsize(path) for path in self._others())
        while self._older > self._most and self._width < _LONGEST_RUN:  # one sample always stays
            self._width *= 2
            self._kept = -1
            self._older = sum(self._thin(path) for path in self._others())
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._written = os.fstat(self._fd).st_size
        self._minute = minute

    def _others(self) -> list[str]:
        return [path for path in files_below(self._folder, self._number) if path != self._path]

    def _thin(self, path: str) -> int:
        """Leaves the first sample of each period in a file; returns the bytes that are left.

        A file that cannot be rewritten, mostly since the disk is full, goes as a whole. Nothing is synced to the disk:
        samples that a power failure costs are worth no wait of others' writes.
        """
        try:
            if self._width == self._interval:
                return os.path.getsize(path)
            with open(path, "rb") as file:
                text = b"".join(self._first_of_each_period(file))
            if text:
                aside = f"{path.rpartition('.')[0]}.thinned"
                try:
                    with open(aside, "wb") as file:
                        file.write(text)
                    os.replace(aside, path)
                    return len(text)
                finally:
                    remove(aside)
        except OSError:
            pass
        remove(path)
        try:
            os.rmdir(os.path.dirname(path))
        except OSError:  # others are left in this hour
            pass
        return 0

    def _first_of_each_period(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        stamp, keep = b"", False
        for line in lines:
            time = line.rpartition(b'"Timestamp": ')[2].rstrip(b"}\n")
            if time != stamp and time.replace(b".", b"", 1).isdigit():
                stamp = time
                period = int(float(time) / self._width)
                keep, self._kept = period != self._kept, period
            if keep:
                yield line
