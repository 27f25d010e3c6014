"""CRC-32C (Castagnoli) of many pieces at once, with numpy alone; with google-crc32c where that is installed.

A CRC is linear: the checksum of a piece is the xor of what its words contribute, each moved by the
bits that follow it. So every piece is laid out as rows of words, in front of which zeros count for
nothing; all columns go on independently, row by row; and the columns are folded in halves until one
is left. Source of polynomial and test values: RFC 3720, appendix B.4.
"""

from __future__ import annotations

from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_POLYNOMIAL = 0x82F63B78  # reversed
_ONES = 0xFFFFFFFF
_MOST = 1 << 19  # bytes that are worked on at once


def crc32c(data: bytes) -> int:
    """The checksum of a short piece, byte by byte in Python."""
    value, table = _ONES, _byte_table()
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ _ONES


def crc32c_of_all(pieces: Sequence[bytes]) -> list[int]:
    """The checksums of these pieces."""
    try:
        from google_crc32c import value
    except ImportError:
        return _with_numpy(pieces)
    return [value(piece) for piece in pieces]


def masked(value: int) -> int:
    """A checksum as TFRecord stores it, so that checksums of checksums stay different (tensorflow's crc32c.h)."""
    return ((value >> 15 | value << 17) + 0xA282EAD8) & _ONES


def _with_numpy(pieces: Sequence[bytes]) -> list[int]:
    """Pieces of about the same size are done together."""
    found = [0] * len(pieces)
    alike: dict[tuple[int, int], list[int]] = {}
    for number, piece in enumerate(pieces):
        alike.setdefault(_layout(len(piece)), []).append(number)
    for (rows, lanes), numbers in alike.items():
        width = 4 * rows * lanes
        step = max(1, _MOST // width)
        for at in range(0, len(numbers), step):
            some = numbers[at : at + step]
            sums = _raw(b"".join([pieces[number].rjust(width, b"\0") for number in some]), len(some), rows, lanes)
            for number, value in zip(some, sums.tolist(), strict=True):
                found[number] = value ^ _begun(len(pieces[number])) ^ _ONES
    return found


def _layout(size: int) -> tuple[int, int]:
    """(rows, words in a row) that hold a piece of `size` bytes: few steps, and few words to fold."""
    words = max(1, -(-size // 4))
    lanes = 1 << min(12, max(0, (words.bit_length() - 1) * 2 // 3))
    rows = -(-words // lanes)
    if rows > 16:  # pieces of nearly one size share a layout
        unit = 1 << rows.bit_length() - 4
        rows = -(-rows // unit) * unit
    return rows, lanes


def _raw(data: bytes, pieces: int, rows: int, lanes: int) -> Any:
    """Checksums that begin with 0 and are not inverted, of `pieces` pieces of rows * lanes words."""
    import numpy as np

    words = np.frombuffer(data, "<u4").reshape(pieces, rows, lanes)
    value = words[:, 0].astype(np.uint32)
    low, high = _moving(32 * lanes)
    for row in range(1, rows):
        value = _moved(value, low, high)
        value ^= words[:, row]
    while value.shape[1] > 1:
        half = value.shape[1] // 2
        value = _moved(value[:, :half], *_moving(32 * half)) ^ value[:, half:]
    return _moved(value[:, 0], *_moving(32))


def _moved(value: Any, low: Any, high: Any) -> Any:
    import numpy as np

    found = low.take(value & np.uint32(0xFFFF))
    found ^= high.take(value >> np.uint32(16))
    return found


@lru_cache(maxsize=64)
def _moving(bits: int) -> tuple[Any, Any]:
    """Tables for the lower and the upper 16 bits of a value that is moved by a number of bits: that many zeros follow it."""
    import numpy as np

    columns = [1 << bit for bit in range(32)]
    for place in range(bits.bit_length()):
        if bits >> place & 1:
            columns = [_applied(_powers()[place], column) for column in columns]
    tables = []
    for half in (columns[:16], columns[16:]):
        table = np.zeros(1, np.uint32)
        for column in half:
            table = np.concatenate((table, table ^ np.uint32(column)))
        tables.append(table)
    return tables[0], tables[1]


def _applied(matrix: list[int], value: int) -> int:
    found = 0
    for bit in range(32):
        if value >> bit & 1:
            found ^= matrix[bit]
    return found


@lru_cache(maxsize=1 << 16)
def _begun(size: int) -> int:
    """What the 32 ones with which a checksum begins have become after `size` bytes."""
    value, bits = _ONES, 8 * size
    for place in range(bits.bit_length()):
        if bits >> place & 1:
            value = _applied(_powers()[place], value)
    return value


@lru_cache(maxsize=1)
def _powers() -> list[list[int]]:
    """Matrices that move a value by 1, 2, 4, ... bits."""
    power = [(1 << bit >> 1) ^ (_POLYNOMIAL if bit == 0 else 0) for bit in range(32)]
    powers = []
    for _ in range(64):
        powers.append(power)
        power = [_applied(power, column) for column in power]
    return powers


@lru_cache(maxsize=1)
def _byte_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table
