"""TFRecord: frames with checksums, and in each a `tf.train.Example`.

A frame is a little-endian u64 length, the masked CRC-32C of these 8 bytes (u32), the payload, and
its masked CRC-32C (u32). Source: tensorflow's record_writer.h. An Example has features = 1, which
has a map feature = 1 of text to a Feature: one of bytes_list = 1, float_list = 2, int64_list = 3,
each with value = 1, repeated. Source: tensorflow's example.proto and feature.proto.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from trainshed.base.protobuf import BYTES, DecodeError, spans

from .crc32c import crc32c, crc32c_of_all, masked
from .errors import SampleError, damaged
from .format import BLOCK, LARGEST, Counted, StreamFormat, is_packed
from .frames import count_frames, equal_frames
from .packed import FLOATS, LONGS, columns, joined, stacked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import IO, Any

    Feature = tuple[int, list[tuple[int, int, int]]]  # which list, and (kind, begin, end) of its parts

_HEADER = struct.Struct("<QI")
_FRAME = _HEADER.size + 4  # bytes that are not payload
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_KINDS = {_FLOAT_LIST: FLOATS, _INT64_LIST: LONGS}


class TfRecordBytes(StreamFormat):
    """Records of bytes, whose checksums are right.

    Args:
        verify: whether payloads are checked; lengths always are. That takes longer than reading, unless
            the package google-crc32c is installed.
    """

    name = "tfrecord-bytes"
    needs: tuple[str, ...] = ("numpy",)

    def __init__(self, *, verify: bool = True) -> None:
        self.verify = verify

    def split(self, stream: IO[bytes], path: str, record: int = 0, offset: int = 0) -> Iterator[tuple[int, bytes]]:
        """Splits records; what was read at once is verified at once."""
        data = b""  # what was read and not yet given; `offset` is where it begins
        size = 0
        while True:
            more = stream.read(max(BLOCK, size - len(data)))
            data += more
            found, size = self._whole(data, path, record, offset)
            if found:
                self._verify(data, found, path, record, offset)
                for begin, end in found:
                    yield offset + begin, data[begin + _HEADER.size : end - 4]
                record, offset, data = record + len(found), offset + found[-1][1], data[found[-1][1] :]
            elif not more:
                break
        if data:
            raise damaged(path, record, offset, f"is cut short: {len(data)} of {max(size, _HEADER.size)} bytes are there")

    def count(self, path: str) -> Counted:
        """Looks at the headers alone."""
        if is_packed(path):
            return super().count(path)

        def look(data: bytes, at: int, record: int, offset: int) -> tuple[int, bool, bool]:
            return _size(data, at, path, record, offset), True, True

        return count_frames(path, _HEADER.size, look)

    def _whole(self, data: bytes, path: str, record: int, offset: int) -> tuple[list[tuple[int, int]], int]:
        """(begin, end) of the whole frames in `data`, and the size of the one behind them, 0 where it is not known."""
        found: list[tuple[int, int]] = []
        at = 0
        while len(data) - at >= _HEADER.size:
            size = _size(data, at, path, record + len(found), offset + at)
            if len(data) - at < size:
                return found, size
            many = equal_frames(data, at, size, _HEADER.size)
            found += [(begin, begin + size) for begin in range(at, at + many * size, size)]
            at += many * size
        return found, 0

    def _verify(self, data: bytes, found: list[tuple[int, int]], path: str, record: int, offset: int) -> None:
        if not self.verify:
            return
        sums = crc32c_of_all([data[begin + _HEADER.size : end - 4] for begin, end in found])
        for number, ((begin, end), value) in enumerate(zip(found, sums, strict=True), record):
            if masked(value) != int.from_bytes(data[end - 4 : end], "little"):
                raise damaged(path, number, offset + begin, "is damaged: its checksum differs")

    def recognizes(self, path: str, beginning: bytes) -> bool:
        """By the checksum of the first length."""
        return len(beginning) >= _HEADER.size and beginning[8:12] == _length_sum(beginning[:8])


class TfRecord(TfRecordBytes):
    """Examples: dictionaries of lists of bytes, and of arrays float32 [n] and int64 [n].

    A feature without a value is an empty list. Records of another kind are read as
    "tfrecord-bytes".
    """

    name = "tfrecord"
    content_types: tuple[str, ...] = ("application/x-tfrecord", "application/tfrecord", "application/x-tfexample")
    endings: tuple[str, ...] = (".tfrecord", ".tfrecords", ".tfrec")

    def sample(self, record: bytes) -> dict[str, Any]:
        """Decodes one Example."""
        try:
            return {name: _feature(record, feature) for name, feature in _parsed(record).items()}
        except DecodeError as error:
            raise SampleError(
                f"is not a tf.train.Example: it {error} (the format tfrecord-bytes takes it as it is)"
            ) from error

    def batch(self, records: Sequence[bytes]) -> dict[str, Any] | None:
        """Decodes records that differ in numbers alone, all at once; None for others, which `sample` takes."""
        try:
            features = _parsed(records[0])
            if not all(which in _KINDS and [how for how, _, _ in parts] == [BYTES] for which, parts in features.values()):
                return None
            order = sorted(features, key=lambda name: features[name][1][0][1])
            found = columns(records, [features[name][1][0][1:] for name in order])
            if found is None:
                return None
            arrays = {name: stacked(_KINDS[features[name][0]], column) for name, column in zip(order, found, strict=True)}
        except (DecodeError, SampleError):
            return None  # `sample` says which
        return None if any(array is None for array in arrays.values()) else {name: arrays[name] for name in features}


def _size(data: bytes, at: int, path: str, record: int, offset: int) -> int:
    """The size of the frame whose header is at `at`."""
    length, _ = _HEADER.unpack_from(data, at)
    if data[at + 8 : at + _HEADER.size] != _length_sum(data[at : at + 8]):
        raise damaged(path, record, offset, "does not begin with a length and its checksum, as those of TFRecord do")
    if length > LARGEST:
        raise damaged(path, record, offset, f"claims to have {length} bytes")
    return _FRAME + int(length)


@lru_cache(maxsize=4096)
def _length_sum(length: bytes) -> bytes:
    return masked(crc32c(length)).to_bytes(4, "little")


def _parsed(record: bytes) -> dict[str, Feature]:
    found: dict[str, Feature] = {}
    for number, kind, begin, end in spans(record):
        if number == 2 and kind == BYTES:
            raise SampleError("is a tf.train.SequenceExample, of which there is no decoder: read it as tfrecord-bytes")
        if number != 1 or kind != BYTES:
            raise DecodeError(f"has a field {number}")
        for _, how, first, last in _fields(record, begin, end, 1):
            if how != BYTES:
                raise DecodeError("has a feature of another form")
            name, feature = _entry(record, first, last)
            found[name] = feature
    return found


def _entry(record: bytes, begin: int, end: int) -> tuple[str, Feature]:
    name, which = "", 0
    parts: list[tuple[int, int, int]] = []
    for number, kind, first, last in spans(record, begin, end):
        if number == 1 and kind == BYTES:
            try:
                name = record[first:last].decode()
            except UnicodeDecodeError as error:
                raise DecodeError("has a name that is not UTF-8") from error
        elif number == 2 and kind == BYTES:
            for list_, _, start, stop in spans(record, first, last):
                if list_ in (_BYTES_LIST, _FLOAT_LIST, _INT64_LIST):
                    parts = parts if list_ == which else []
                    which = list_
                    parts += [(how, place, over) for _, how, place, over in _fields(record, start, stop, 1)]
    return name, (which, parts)


def _fields(record: bytes, begin: int, end: int, number: int) -> list[tuple[int, int, int, int]]:
    return [field for field in spans(record, begin, end) if field[0] == number]


def _feature(record: bytes, feature: Feature) -> Any:
    which, parts = feature
    if which not in _KINDS:
        return [record[begin:end] for _, begin, end in parts]
    return joined(_KINDS[which], record, parts)
