"""RecordIO: frames with a magic number and a length, as dmlc-core's recordio.h defines them.

A frame is a little-endian u32 0xced7230a, a u32 whose lower 29 bits are the payload's length and
whose upper 3 bits say which part of a record it is (0 all of it, 1 the first, 2 one between, 3 the
last), the payload, and padding to 4 bytes.
"""

from __future__ import annotations

import struct

from .equal import MOST_BYTES, After, equal_runs
from .errors import damaged
from .format import BLOCK, LARGEST, Counted, StreamFormat, is_packed
from .frames import count_frames, equal_frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from .equal import ByteStream, Placed

MAGIC = 0xCED7230A
_LENGTH = (1 << 29) - 1
_WHOLE, _FIRST, _BETWEEN, _LAST = range(4)
_HEADER = struct.Struct("<II")


class RecordIO(StreamFormat):
    """Records of bytes."""

    name = "recordio"
    content_types: tuple[str, ...] = ("application/x-recordio",)
    endings: tuple[str, ...] = (".rec", ".recordio")

    def split(self, stream: IO[bytes], path: str, record: int = 0, offset: int = 0) -> Iterator[tuple[int, bytes]]:
        """Parts of a record are joined."""
        data, at = b"", 0  # what was read and not yet given, from `at` on; `offset` is where `data` begins
        parts: list[bytes] = []
        began, joined = offset, 0
        while True:
            if len(data) - at < _HEADER.size:
                data, at, offset = data[at:] + stream.read(BLOCK), 0, offset + at
                if not data:
                    break
                if len(data) < _HEADER.size:
                    raise damaged(path, record, offset, "is cut short")
            length, place = _header(data, at, path, record, offset + at)
            size = _HEADER.size + length + (-length & 3)
            if len(data) - at < size:
                data, at, offset = data[at:] + stream.read(max(BLOCK, size - (len(data) - at))), 0, offset + at
                if len(data) < size:
                    raise damaged(path, record, offset, f"is cut short: {len(data)} of {size} bytes are there")
            if place == _WHOLE and not parts:
                many = equal_frames(data, at, size, _HEADER.size)
                for begin in range(at, at + many * size, size):
                    yield offset + begin, data[begin + 8 : begin + 8 + length]
                at, record = at + many * size, record + many
                continue
            if _is_out_of_order(place, bool(parts)):
                raise damaged(path, record, offset + at, "has parts in a wrong order")
            began = began if parts else offset + at
            joined = joined + length if parts else length
            if joined > LARGEST:
                raise damaged(path, record, began, f"has parts of more than {LARGEST} bytes")
            parts.append(data[at + 8 : at + 8 + length])
            at += size
            if place == _LAST:
                yield began, b"".join(parts)
                parts, record = [], record + 1
        if parts:
            raise damaged(path, record, began, "is cut short: its last part is missing")

    def runs(self, stream: ByteStream, path: str, many: int) -> Iterator[Placed]:
        """Frames of one length are read as blocks."""

        def rest(data: bytes, before: int) -> Iterator[Placed]:
            found = self.split(After(data, stream), path, before, before * size)  # type: ignore[arg-type]
            for number, (offset, record) in enumerate(found, before):
                yield number, offset, (record,)

        head, size = stream.read(_HEADER.size), 0
        if len(head) < _HEADER.size:
            yield from rest(head, 0)
            return
        length, place = _header(head, 0, path, 0, 0)
        size = _HEADER.size + length + (-length & 3)
        if place != _WHOLE or size * many > MOST_BYTES:
            yield from rest(head, 0)
        else:
            yield from equal_runs(stream, head, size, _HEADER.size + length, many, rest)

    def count(self, path: str) -> Counted:
        """Looks at the headers alone."""
        if is_packed(path):
            return super().count(path)
        open_at = -1  # where the record begins whose last part was not yet seen

        def look(data: bytes, at: int, record: int, offset: int) -> tuple[int, bool, bool]:
            nonlocal open_at
            record -= open_at >= 0
            length, place = _header(data, at, path, record, offset)
            if _is_out_of_order(place, open_at >= 0):
                raise damaged(path, record, offset, "has parts in a wrong order")
            begins = place <= _FIRST
            open_at = -1 if place in (_WHOLE, _LAST) else offset if begins else open_at
            return _HEADER.size + length + (-length & 3), begins, place == _WHOLE

        counted = count_frames(path, _HEADER.size, look)
        if open_at >= 0:
            raise damaged(path, counted.records - 1, open_at, "is cut short: its last part is missing")
        return counted

    def recognizes(self, path: str, beginning: bytes) -> bool:
        """By the magic number."""
        return beginning[:4] == MAGIC.to_bytes(4, "little")


def _header(data: bytes, at: int, path: str, record: int, offset: int) -> tuple[int, int]:
    """(length of the payload, which part it is)."""
    magic, word = _HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise damaged(path, record, offset, f"begins with 0x{magic:08x} instead of RecordIO's 0x{MAGIC:08x}")
    return word & _LENGTH, word >> 29


def _is_out_of_order(place: int, within: bool) -> bool:
    """Whether a part cannot stand here: `within` a record whose last part has not come."""
    return place > _LAST or (place in (_WHOLE, _FIRST)) == within
