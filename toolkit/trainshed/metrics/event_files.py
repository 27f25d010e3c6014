"""Scalars of TensorBoard's event files, which torch, Lightning, Keras, transformers and tensorboardX write.

A file is a row of records: length (8 bytes, little-endian), its checksum (4), the record, its checksum (4). A record is a
protocol buffer `Event`: wall_time = 1 (double), step = 2, summary = 5; a summary's values = 1, each with tag = 1 and
simple_value = 2 (float) or tensor = 8. Source: tensorflow's record_writer.h, event.proto, summary.proto and tensor.proto.
Checksums are not looked at: a record that is cut or damaged ends the file.
"""

from __future__ import annotations

import os
import struct

from trainshed.base.protobuf import DecodeError, fields, varints

from .points import Point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

SIGN = ".tfevents."  # in the names of event files
_LARGEST = 1 << 20  # bytes of a record that may hold scalars; images and graphs are larger and are skipped
# Types of a tensor's elements: where the tensor has its value, and how its content is packed.
_TENSORS = {1: (5, "<f"), 2: (6, "<d"), 3: (7, "<i"), 9: (10, "<q")}


def find(folder: str) -> dict[str, list[str]]:
    """The event files below a folder, in the order of their names.

    Returns:
        Folder of the files, relative to `folder` ("" for itself) -> paths. Links to folders are not followed.
    """
    found: dict[str, list[str]] = {}
    for place, folders, names in os.walk(folder):
        folders.sort()
        files = [f"{place}/{name}" for name in sorted(names) if SIGN in name]
        if files:
            found["" if place == folder else os.path.relpath(place, folder)] = files
    return found


def records(file: BinaryIO) -> Iterator[tuple[int, list[Point]]]:
    """From where an event file stands, its whole records: where each ends, and its scalars, called by their tags."""
    try:
        while (record := _record(file)) is not None:
            yield file.tell(), list(_scalars(record))
    except (OSError, DecodeError, struct.error, UnicodeDecodeError):
        return


def _record(file: BinaryIO) -> bytes | None:
    """The next record, b"" for one that is too large to hold scalars; None where it is not whole."""
    head = file.read(12)
    if len(head) < 12:
        return None
    (length,) = struct.unpack("<Q", head[:8])
    if length > _LARGEST:
        end = file.tell() + length + 4
        return b"" if end <= os.fstat(file.fileno()).st_size and file.seek(end) else None
    record = file.read(length + 4)
    return record[:length] if len(record) == length + 4 else None  # else it is being written


def _scalars(record: bytes) -> Iterator[Point]:
    time, step, summaries = 0.0, 0, []
    for number, value in fields(record):
        if number == 1 and isinstance(value, bytes):
            (time,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >> 63 else value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, content in fields(summary):
            if number == 1 and isinstance(content, bytes):
                tag, scalar = _value(content)
                if tag and scalar is not None:
                    yield Point(tag, scalar, time, step)


def _value(content: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, value in fields(content):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            tag = value.decode()
        elif number == 2 and len(value) == 4:
            (scalar,) = struct.unpack("<f", value)
        elif number == 8:
            scalar = _scalar_of_tensor(value)
    return tag, scalar


def _scalar_of_tensor(content: bytes) -> float | None:
    """A tensor's only element; None for larger tensors and other types."""
    found = dict(fields(content))
    kind = found.get(1)
    if kind not in _TENSORS:
        return None
    number, form = _TENSORS[kind]  # type: ignore[index]
    value = found.get(4) or found.get(number)
    if isinstance(value, int):
        return float(value - (1 << 64) if value >> 63 else value)
    if isinstance(value, bytes) and number in (7, 10) and not found.get(4):
        packed = list(varints(value))
        return float(packed[0]) if len(packed) == 1 else None
    if isinstance(value, bytes) and len(value) == struct.calcsize(form):
        return float(struct.unpack(form, value)[0])
    return None
