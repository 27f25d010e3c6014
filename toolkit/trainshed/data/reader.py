"""Reads records of a channel's files in any order, and keeps the file open at which it stands."""

from __future__ import annotations

from collections import deque
from itertools import islice

from .formats.errors import DataError
from .formats.format import changed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from .formats.format import Counted, Format
    from .order import Order


class RecordReader:
    """One reader; not for several threads.

    Args:
        files: their paths. counted: their records.
    """

    def __init__(self, files: Sequence[str], counted: Sequence[Counted], form: Format) -> None:
        self._files, self._counted, self._format = files, counted, form
        self._file, self._next = -1, 0
        self._records: Iterator[Any] = iter(())

    def fetch(self, positions: Sequence[int], order: Order) -> list[Any]:
        """The records at these positions of an order, in their sequence.

        Raises:
            DataError: a file cannot be read, is damaged, or has become shorter.
        """
        ascending = sorted(positions)
        found = [record for run in order.runs(ascending) for record in self.read(*run)]
        if ascending == list(positions):
            return found
        by_position = dict(zip(ascending, found, strict=True))
        return [by_position[position] for position in positions]

    def read(self, file: int, first: int, count: int) -> list[Any]:
        """Successive records of one file. Raises DataError as `fetch`."""
        path, counted = self._files[file], self._counted[file]
        ahead = counted.stride if counted.marks else counted.records
        try:
            if file != self._file or not self._next <= first <= self._next + ahead:
                self.close()
                self._records = iter(self._format.read(path, first, counted))
                self._file, self._next = file, first
            if first > self._next:
                deque(islice(self._records, first - self._next), maxlen=0)
            found = list(islice(self._records, count))
        except OSError as error:
            self._file = -1
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
        except BaseException:
            self._file = -1
            raise
        self._next = first + count
        if len(found) < count:
            self._file = -1
            raise changed(path, counted, first + len(found))
        return found

    def close(self) -> None:
        """Closes the file."""
        records, self._records, self._file = self._records, iter(()), -1
        ends = getattr(records, "close", None)
        if ends is not None:
            ends()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_records": iter(()), "_file": -1}
