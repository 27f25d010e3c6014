"""Frames of one length that follow each other: read into one block of memory, and taken apart by columns.

Files of tensors are long runs of such frames. A batch of them costs one look at the headers and one copy for each field,
instead of a Python object for each record.
"""

from __future__ import annotations

from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Protocol

    class ByteStream(Protocol):
        """What is read: a pipe."""

        def read(self, size: int) -> bytes:
            """As many bytes; fewer at its end alone."""

        def readinto(self, buffer: memoryview, least: int) -> int:
            """Reads what is there; returns how many bytes, fewer than `least` at its end alone."""

    # (path, number and offset of the first record, records)
    Placed = tuple[int, int, "Sequence[Any]"]

MOST_BYTES = 32 << 20  # of the records that are wanted at once
_BLOCK_BYTES = 1 << 20  # read at once, where so much is there: as much as a pipe holds


class Equal(Sequence[bytes]):
    """Records of one length, as a sequence of bytes.

    They lie in memory that the next ones are read into: who keeps them takes `kept`.

    rows: their frames, uint8 [records, bytes of a frame].
    begin, end: where the record lies in its frame.
    memo: for what all records of one stream share; empty after pickling.
    block: likewise, of those that were read at once: `rows` of all of them, where these are some of more.
    """

    def __init__(self, rows: Any, begin: int, end: int, memo: dict[str, Any], block: dict[str, Any]) -> None:
        self.rows, self.begin, self.end, self.memo, self.block = rows, begin, end, memo, block

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            self.block.setdefault("rows", self.rows)
            return Equal(self.rows[at], self.begin, self.end, self.memo, self.block)
        return self.rows[at, self.begin : self.end].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        size, data = self.rows.shape[1], self.rows.tobytes()
        return (data[at + self.begin : at + self.end] for at in range(0, len(data), size))

    def kept(self) -> Equal:
        """The same in memory of their own."""
        return Equal(self.rows.copy(), self.begin, self.end, self.memo, {})

    def __reduce__(self) -> tuple[Any, ...]:
        return Equal, (self.rows, self.begin, self.end, {}, {})


class After:
    """A stream with bytes before it that were read from it already."""

    def __init__(self, data: bytes, stream: ByteStream) -> None:
        self._data, self._stream = data, stream

    def read(self, size: int) -> bytes:
        """As many bytes; fewer at the end alone."""
        taken, self._data = self._data[:size], self._data[size:]
        return taken + self._stream.read(size - len(taken)) if len(taken) < size else taken


def equal_runs(
    stream: ByteStream, head: bytes, size: int, end: int, many: int, rest: Callable[[bytes, int], Iterator[Placed]]
) -> Iterator[Placed]:
    """Blocks of `many` frames that begin with the same header, for as long as there are any.

    Args:
        head: the header of the first frame, which was read, 8 bytes.
        size: of a frame in bytes. end: where the record ends in it.
        rest: (bytes that were read, records before them) -> what follows where a frame differs, or the stream ends.
    """
    import numpy as np

    most = max(many, _BLOCK_BYTES // size)
    rows = np.empty((most, size), np.uint8)
    view = memoryview(rows.reshape(-1))  # type: ignore[arg-type]
    headers = np.ndarray((most,), f"<u{len(head)}", rows, strides=(size,))
    first = int.from_bytes(head, "little")
    memo: dict[str, Any] = {}
    view[: len(head)] = head
    held, before = len(head), 0
    while True:
        held += stream.readinto(view[held:], many * size - held)
        whole = held // size
        alike = headers[:whole] == first
        found = whole if alike.all() else int(alike.argmin())
        ends = found < whole or found < many
        block = Equal(rows[:found], len(head), end, memo, {})
        given = found if ends else found - found % many
        for at in range(0, given, many):
            yield before + at, (before + at) * size, block[at : min(at + many, given)]
        before += given
        if ends:
            yield from rest(bytes(view[given * size : held]), before)
            return
        left = held - given * size
        view[:left] = view[given * size : held]
        held = left


def regrouped(runs: Iterable[Sequence[Any]], size: int) -> Iterator[Sequence[Any]]:
    """The same records in sequences of `size`, the last one may have fewer."""
    held: list[Any] = []
    for run in runs:
        if len(run) == size and not held:
            yield run
            continue
        held += run
        while len(held) >= size:
            yield held[:size]
            held = held[size:]
    if held:
        yield held
