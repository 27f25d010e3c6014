"""The wire format of protocol buffers."""

from __future__ import annotations

import pytest

from support.data_files import field, varint
from trainshed.base.protobuf import DecodeError, fields, spans, varints
from trainshed.base.protobuf import varint as read_varint


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, (1 << 32) - 1, (1 << 64) - 1])
def test_a_number_is_read_with_its_end(value: int) -> None:
    assert read_varint(b"x" + varint(value) + b"y", 1) == (value, 1 + len(varint(value)))


def test_packed_numbers_are_signed() -> None:
    assert list(varints(varint(-1) + varint(5) + varint(-(1 << 63)))) == [-1, 5, -(1 << 63)]


def test_fields_are_told_with_their_places() -> None:
    message = (
        varint(1 << 3) + varint(300) + field(2, b"abc") + varint(3 << 3 | 5) + b"1234" + varint(4 << 3 | 1) + b"12345678"
    )

    assert list(fields(message)) == [(1, 300), (2, b"abc"), (3, b"1234"), (4, b"12345678")]
    assert [(number, message[begin:end]) for number, _, begin, end in spans(message)][1] == (2, b"abc")
    assert next(spans(b"xx" + message + b"xx", 2, 2 + len(message))) == (1, 0, 3, 5)


@pytest.mark.parametrize(
    "message",
    [
        b"\x80",
        b"\x0a\x02x",
        b"\x0d123",
        b"\x09123",
        b"\x0b",
        b"\x0c",
        b"\x0e",
        b"\x00\x01",
        b"\xff" * 11,
        b"\x0a" + b"\xff" * 9,
    ],
)
def test_what_is_not_a_message_is_damaged(message: bytes) -> None:
    with pytest.raises(DecodeError):
        list(fields(message))


def test_a_field_does_not_reach_beyond_its_message() -> None:
    with pytest.raises(DecodeError, match="ends within a field"):
        list(spans(field(1, b"abc") + field(2, b"d"), 0, 4))
