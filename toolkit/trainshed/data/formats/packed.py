"""Repeated numbers of protocol buffers as arrays: one record's, or those of many records that are built alike."""

from __future__ import annotations

from trainshed.base.protobuf import BYTES, FIXED32, FIXED64, VARINT, DecodeError, varints
from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .equal import Equal


# Bytes that are joined at once: larger blocks of memory go back to the system, which then clears them page by page anew.
_AT_ONCE = 96 << 10
_FEW = 48  # bytes of varints that Python reads faster than numpy


class NumberFormat(Record):
    """How numbers are written, and the type that they get.

    wire: the kind of a field that holds one of them (protobuf.VARINT, ...).
    dtype: numpy's name of the type.
    """

    wire: int
    dtype: str


FLOATS = NumberFormat(FIXED32, "float32")
DOUBLES = NumberFormat(FIXED64, "float64")
INTS = NumberFormat(VARINT, "int32")
LONGS = NumberFormat(VARINT, "int64")
KEYS = NumberFormat(VARINT, "uint64")


def numbers(kind: NumberFormat, data: bytes) -> Any:
    """A packed field's array, of one dimension. Raises DecodeError."""
    import numpy as np

    if kind.wire == VARINT:  # of larger numbers the lower bits count, as in C
        if len(data) < _FEW:
            return np.array([*varints(data)], np.int64).astype(kind.dtype)
        return _varints(np.frombuffer(data, np.uint8)).astype(kind.dtype)
    little = np.dtype(kind.dtype).newbyteorder("<")
    if len(data) % little.itemsize:
        raise DecodeError(f"has numbers of {little.itemsize} bytes in {len(data)} bytes")
    return np.frombuffer(data, little).astype(kind.dtype)  # a copy, which may be written


def joined(kind: NumberFormat, record: bytes, places: Sequence[tuple[int, int, int]]) -> Any:
    """A repeated field's array, packed or not: both are written alike.

    Args:
        places: (kind, begin, end) of its parts in the record.

    Raises:
        DecodeError: a part has something else, or ends within a number.
    """
    for how, begin, end in places:
        if how not in (BYTES, kind.wire):
            raise DecodeError(f"has numbers of kind {how}")
        if how == BYTES and len(places) > 1:
            numbers(kind, record[begin:end])  # is whole by itself
    return numbers(kind, b"".join([record[begin:end] for _, begin, end in places]))


def columns(records: Sequence[bytes], spans: Sequence[tuple[int, int]]) -> list[Any] | None:
    """The bytes between these places of all records, each as an array [records, end - begin].

    Args:
        spans: (begin, end), in order.

    Returns:
        None where the records differ in their lengths, or in any byte outside of the spans.
    """
    import numpy as np

    size = len(records[0])
    if set(map(len, records)) != {size}:
        return None
    found = [np.empty((len(records), end - begin), np.uint8) for begin, end in spans]
    between = list(zip([0, *(end for _, end in spans)], [*(begin for begin, _ in spans), size], strict=True))
    alike = np.frombuffer(records[0], np.uint8)
    some = max(1, _AT_ONCE // max(1, size))
    for at in range(0, len(records), some):
        piece = records[at : at + some]
        rows = np.frombuffer(b"".join(piece), np.uint8).reshape(len(piece), size)
        if any((rows[:, begin:end] != alike[begin:end]).any() for begin, end in between):
            return None
        for column, (begin, end) in zip(found, spans, strict=True):
            column[at : at + some] = rows[:, begin:end]
    return found


def strided(records: Equal, first: bytes, spans: Sequence[tuple[int, int]]) -> list[Any] | None:
    """As `columns`, of records in one block of memory.

    Args:
        first: a record that all of them are to be like outside of the spans.
    """
    rows = records.rows[:, records.begin : records.end]
    if records.block.get("like") is not first:  # nobody has looked at all that were read with these
        every = records.block.get("rows", records.rows)[:, records.begin : records.end]
        if _are_like(every, first, spans):
            records.block["like"] = first
        elif not _are_like(rows, first, spans):
            return None
    return [rows[:, begin:end].copy() for begin, end in spans]


def _are_like(rows: Any, first: bytes, spans: Sequence[tuple[int, int]]) -> bool:
    import numpy as np

    if len(first) != rows.shape[1]:
        return False
    alike = np.frombuffer(first, np.uint8)
    between = zip([0, *(end for _, end in spans)], [*(begin for begin, _ in spans), len(first)], strict=True)
    return all((rows[:, begin:end] == alike[begin:end]).all() for begin, end in between if begin < end)


def stacked(kind: NumberFormat, column: Any) -> Any | None:
    """A packed field of many records as an array [records, numbers]; None where they have different counts.

    Args:
        column: its bytes, from `columns`; becomes the array where numbers are stored as they are.

    Raises DecodeError.
    """
    import numpy as np

    if not column.size:
        return np.empty((len(column), 0), kind.dtype)
    if kind.wire != VARINT:
        little = np.dtype(kind.dtype).newbyteorder("<")
        if column.shape[1] % little.itemsize:
            raise DecodeError(f"has numbers of {little.itemsize} bytes in {column.shape[1]} bytes")
        return column.view(little).astype(kind.dtype, copy=False)
    last = column < 0x80
    counts = np.count_nonzero(last, axis=1)
    if not last[:, -1].all():
        raise DecodeError("ends within a number")
    if (counts != counts[0]).any():
        return None
    return _varints(column.reshape(-1)).astype(kind.dtype).reshape(len(column), counts[0])


def _varints(raw: Any) -> Any:
    """The varints in an array of bytes, as int64; what is written as unsigned wraps around."""
    import numpy as np

    last = raw < 0x80
    if not raw.size or last.all():
        return raw.astype(np.int64)
    if not last[-1]:
        raise DecodeError("ends within a number")
    ends = np.flatnonzero(last)
    begins = np.concatenate((ends[:1] * 0, ends[:-1] + 1))
    lengths = ends - begins + 1
    longest = int(lengths.max())
    if longest > 10:
        raise DecodeError("has a number of more than 64 bits")
    values = (raw[begins] & 0x7F).astype(np.uint64)
    for place in range(1, longest):
        longer = lengths > place
        values[longer] |= (raw[begins[longer] + place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return values.view(np.int64)
