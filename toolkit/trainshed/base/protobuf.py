"""The wire format of protocol buffers, read without their package: fields, and where their values lie.

A message is a row of fields: a varint of (number << 3 | kind), then the value. A varint has 7 bits
in each byte, the lowest first, and 1 in the eighth but in its last byte. Source:
https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # how a field's value is written
_FIXED = {FIXED64: 8, FIXED32: 4}


class DecodeError(Exception):
    """Some bytes are not a message of protocol buffers."""


def spans(data: bytes, place: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """(number, kind, begin, end) of each field of the message at data[place:end]: where its value lies.

    Raises:
        DecodeError: a field does not end where the message does, or has a kind that is no longer
        written (groups).
    """
    end = len(data) if end is None else end
    while place < end:
        key, begin = varint(data, place)
        kind = key & 7
        if kind == BYTES:
            size, begin = varint(data, begin)
            place = begin + size
        elif kind == VARINT:
            _, place = varint(data, begin)
        elif kind in _FIXED:
            place = begin + _FIXED[kind]
        else:
            raise DecodeError(f"has a field of kind {kind}")
        if place > end:
            raise DecodeError("ends within a field")
        if key < 8:
            raise DecodeError("has a field 0")
        yield key >> 3, kind, begin, place


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message: an integer, or the bytes of anything else. Raises DecodeError."""
    for number, kind, begin, end in spans(data):
        yield number, varint(data, begin)[0] if kind == VARINT else data[begin:end]


def varint(data: bytes, place: int) -> tuple[int, int]:
    """(value, where it ends) of the unsigned integer of 64 bits that begins at `place`. Raises DecodeError."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise DecodeError("ends within a number")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), place
    raise DecodeError("has a number of more than 64 bits")


def varints(data: bytes) -> Iterator[int]:
    """The signed integers of a packed field. Raises DecodeError."""
    place = 0
    while place < len(data):
        value, place = varint(data, place)
        yield value - (1 << 64) if value >> 63 else value
