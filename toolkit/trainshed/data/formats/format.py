"""The abilities of a format: count a file's records, read them from any one on, and make samples of them.

A *record* is what lies in the file; a *sample* is what the training gets. Most formats can be read
from a stream, so that they serve Pipe mode as well: they say how a stream is cut into records
(`StreamFormat.split`), and that is all.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib

from trainshed.base.record import Record

from .errors import DataError, broken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import IO, Any

    from .equal import ByteStream, Placed

STRIDE = 64  # records between two marks
BLOCK = 1 << 17  # bytes that are read at once: less than what goes back to the system when it is freed (glibc)
LARGEST = 1 << 31  # bytes of a record; what claims to be larger is damaged


class Counted(Record):
    """A file's records, and where some of them begin.

    records: how many there are.
    marks: offsets, in bytes, of the records 0, stride, 2 * stride, ...; () where the file cannot be
        entered in its middle.
    """

    records: int
    marks: tuple[int, ...] = ()
    stride: int = STRIDE

    def near(self, record: int) -> tuple[int, int]:
        """(number, offset) of the last mark that is not behind a record; (0, 0) without marks."""
        if not self.marks:
            return 0, 0
        mark = min(record // self.stride, len(self.marks) - 1)
        return mark * self.stride, self.marks[mark]


class Marks:
    """Counts records, and notes where each STRIDE-th begins."""

    def __init__(self) -> None:
        self.records = 0
        self._stride = STRIDE
        self._offsets: list[int] = []

    def add(self, offset: int) -> None:
        """One record begins at `offset`."""
        if self.records % self._stride == 0:
            self._offsets.append(offset)
        self.records += 1

    def extend(self, offsets: Any) -> None:
        """Records begin at these offsets: a range, or an array of numpy."""
        noted = offsets[-self.records % self._stride :: self._stride]
        self._offsets.extend(int(offset) for offset in noted)
        self.records += len(offsets)

    def counted(self) -> Counted:
        """The result."""
        return Counted(self.records, tuple(self._offsets), self._stride)


class Format:
    """A way in which records lie in a file. Instances hold no state: one serves all files and threads.

    name: for messages, and for `channel(..., format=NAME)`.
    content_types: of channels (`ContentType`) that have this format.
    endings: of files that have it, with their dots.
    streams: whether it can be read from a pipe.
    scattered: whether records lie in files of their own, so that any order costs the same.
    needs: packages that it imports; `table.of` says which are missing.
    """

    name = ""
    content_types: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    streams = False
    scattered = False
    needs: tuple[str, ...] = ()

    def count(self, path: str) -> Counted:
        """Counts a file's records. Raises DataError where it is damaged, OSError where it cannot be read."""
        raise NotImplementedError

    def read(self, path: str, first: int, counted: Counted) -> Iterator[Any]:
        """The records from number `first` on, in order. Raises as `count` does."""
        raise NotImplementedError

    def sample(self, record: Any) -> Any:
        """Makes a record's sample: a number, text, bytes, an array, or a dict or tuple of these.

        Raises SampleError where the record is damaged: who knows its place says it
        (`errors.placed`).
        """
        return record

    def offset_of(self, path: str, record: int, counted: Counted) -> int | None:
        """Says where a record begins, for a message; None where that is not to be said in bytes."""
        return None

    def batch(self, records: Sequence[Any]) -> Any | None:
        """All samples of a batch at once, stacked; None where it knows no faster way than one by one.

        Args:
            records: one or more.
        """
        return None

    def recognizes(self, path: str, beginning: bytes) -> bool:
        """Returns whether a file looks like it by its first bytes (some KiB); asked where neither name nor type tells."""
        return False


class StreamFormat(Format):
    """A format that is read from the beginning on, one record after the other."""

    streams = True

    def split(self, stream: IO[bytes], path: str, record: int = 0, offset: int = 0) -> Iterator[tuple[int, Any]]:
        """(offset, record) of each record of a stream, in order.

        Args:
            stream: `read(n)` gives fewer bytes than n at its end alone.
            path: for messages.
            record, offset: number and place of the first one, where the stream does not begin with
            the file.

        Raises:
            DataError: it is damaged or cut short: see `errors.damaged`.
        """
        raise NotImplementedError

    def runs(self, stream: ByteStream, path: str, many: int) -> Iterator[Placed]:
        """As `split` of a pipe, in sequences: (number and offset of the first record, records).

        Args:
            many: how many records are wanted at once; a sequence may have fewer.
        """
        for number, (offset, record) in enumerate(self.split(stream, path)):  # type: ignore[arg-type]
            yield number, offset, (record,)

    def count(self, path: str) -> Counted:
        """Counts by reading; formats that know better overwrite this."""
        marks = Marks()
        with opened(path) as stream:
            for offset, _ in self.split(stream, path):
                marks.add(offset)
        return enterable(path, marks.counted())

    def read(self, path: str, first: int, counted: Counted) -> Iterator[Any]:
        """Enters the file at the last mark before the record. Raises DataError where its end is elsewhere now."""
        number = first
        for number, (_, one) in enumerate(self._from(path, first, counted), first + 1):  # noqa: B007
            yield one
        if number != max(first, counted.records):
            raise changed(path, counted, number)

    def offset_of(self, path: str, record: int, counted: Counted) -> int | None:
        """Looks for it, as `read` does."""
        return next((offset for offset, _ in self._from(path, record, counted)), None)

    def _from(self, path: str, first: int, counted: Counted) -> Iterator[tuple[int, Any]]:
        record, offset = counted.near(first)
        with opened(path) as stream:
            if offset:
                stream.seek(offset)
            for number, found in enumerate(self.split(stream, path, record, offset), record):
                if number >= first:
                    yield found


def changed(path: str, counted: Counted, records: int) -> DataError:
    """A file has another number of records than when it was counted."""
    what = f"had {counted.records} records when it was counted, and has {records} now"
    return DataError(f"{path} {what}", hint="do not change a channel while it is read")


def is_packed(path: str) -> bool:
    """Returns whether a file is compressed as a whole, with gzip."""
    return path.endswith((".gz", ".tgz"))


def ending_of(path: str) -> str:
    """The ending of a file's name, in small letters, without .gz: ".csv" of "a/B.CSV.gz"; "" if nothing."""
    name = os.path.basename(path).lower()
    name = name.removesuffix("tgz") + "tar" if name.endswith(".tgz") else name.removesuffix(".gz")
    return os.path.splitext(name)[1]


def enterable(path: str, counted: Counted) -> Counted:
    """Without marks where the file is compressed."""
    return counted.replace(marks=()) if is_packed(path) else counted


def opened(path: str) -> IO[bytes]:
    """A file to be read, decompressed if its name ends with .gz or .tgz.

    A damaged archive raises DataError with the file's name when it is read.
    """
    if not is_packed(path):
        return open(path, "rb", buffering=BLOCK)
    return io.BufferedReader(_Unpacked(path, gzip.open(path, "rb")), BLOCK)


class _Unpacked(io.RawIOBase):
    def __init__(self, path: str, file: gzip.GzipFile) -> None:
        self._path = path
        self._file = file
        self._empty = os.stat(path).st_size == 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            if self._empty:  # gzip takes it for the end
                raise EOFError("the file is empty")
            return self._file.readinto(buffer)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            why = str(error) or type(error).__name__
            raise broken(self._path, f"cannot be decompressed: {why}") from error

    def close(self) -> None:
        self._file.close()
        super().close()
