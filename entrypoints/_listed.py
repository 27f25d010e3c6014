"""Labelled images as the platform's image classification has them: lists (.lst) and RecordIO (.rec). Raises Problem.

A line of a list is `index<tab>label<tab>path`, the path below the images' folder. An image in RecordIO has 24 bytes before
it: u32 flag, f32 label, u64 id, u64 id2, all little-endian; with a flag of N > 0 follow N labels, f32 each (MXNet's
recordio.IRHeader).
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import _images
from _common import Problem, folder
from torch import Tensor

from trainshed.data import DataError
from trainshed.data.formats.recordio import RecordIO

RECORDS = (".rec", ".recordio")
_HEADER = struct.Struct("<IfQQ")
Like = tuple[list[str], tuple[int, int, int]]


class RecordImages(_images.Images):
    """Images in RecordIO files, decoded when they are asked for. places: file, and where the record begins in it."""

    def __init__(self, places: list[tuple[Path, int]], labels: Tensor, shape: tuple[int, int, int]) -> None:
        self.places, self.labels, self.shape = places, labels, shape

    def pixels(self, positions: list[int]) -> Tensor:
        """Raw pixel values, uint8."""
        wanted = [self.places[position] for position in positions]
        return _images.decoded([(image_at(*place), f"{place[0]} (byte {place[1]})") for place in wanted], self.shape)


def image_at(path: Path, offset: int) -> io.BytesIO:
    """The image of the record that begins there."""
    with path.open("rb") as file:
        file.seek(offset)
        _, record = next(RecordIO().split(file, str(path), offset=offset))
    return io.BytesIO(record[_HEADER.size + 4 * _HEADER.unpack_from(record)[0] :])


def record_files(root: Path) -> list[Path]:
    """The RecordIO files below a folder."""
    return sorted(path for path in root.rglob("*") if path.suffix in RECORDS and not path.name.startswith("."))


def read_records(
    paths: list[Path], what: str, size: int | None, channels: int | None, classes: int | None, like: Like | None
) -> tuple[_images.Images, list[str]]:
    """The images of RecordIO files, and their classes; arguments as for `_images.read_channel`."""
    places, labels = [], []
    for path in paths:
        try:
            with path.open("rb") as file:
                for number, (offset, record) in enumerate(RecordIO().split(file, str(path))):
                    labels.append(_label_of(record, f"{path}: record {number}"))
                    places.append((path, offset))
        except (OSError, DataError) as error:
            raise Problem(str(error)) from error
    if not places:
        raise Problem(f"{what} holds no images: its RecordIO files are empty")
    names, numbers = _numbered(labels, what, classes, like)
    files = ((image_at(*place), f"{place[0]} (byte {place[1]})") for place in places)
    return RecordImages(places, numbers, like[1] if like else _images.shape_of(files, size, channels)), names


def read_list(
    lists: str, images: Path, what: str, size: int | None, channels: int | None, classes: int | None, like: Like | None
) -> tuple[_images.Images, list[str]]:
    """The images that the lists of a folder, or one list, name; `images`: the folder that their paths begin in."""
    root = Path(lists)
    files = [root] if root.is_file() else sorted(folder(lists, f"the list of {what}").rglob("*.lst"))
    if not files:
        raise Problem(f"the list of {what}, {lists}, holds no .lst file")
    paths, labels = [], []
    for file in files:
        for number, line in enumerate(_lines(file), 1):
            if not line.strip():
                continue
            where = f"{file}:{number}"
            cells = line.split("\t")
            if len(cells) != 3:
                raise Problem(
                    f"{where} has {len(cells)} columns between tabs, not 3: index, label, path (of several labels one)"
                )
            label = _number(cells[1], where)
            path = images / cells[2].strip()
            if ".." in Path(cells[2]).parts or Path(cells[2].strip()).is_absolute():
                raise Problem(f"{where} leads out of the channel: {cells[2].strip()}")
            if not path.is_file():
                raise Problem(f"{where}: there is no image {path}")
            labels.append(label)
            paths.append(path)
    if not paths:
        raise Problem(f"the list of {what} names no images")
    names, numbers = _numbered(labels, what, classes, like)
    shape = like[1] if like else _images.shape_of(((path, str(path)) for path in paths), size, channels)
    return _images.FileImages(paths, numbers, shape), names


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{path} cannot be read as a list: {error}") from error


def _label_of(record: bytes, where: str) -> int:
    if len(record) < _HEADER.size:
        raise Problem(f"{where} is no image: it has {len(record)} bytes, and a header alone has {_HEADER.size}")
    count, label, _, _ = _HEADER.unpack_from(record)
    if count > 1:
        raise Problem(f"{where} has {count} labels: one a picture is served")
    if count == 1:
        if len(record) < _HEADER.size + 4:
            raise Problem(f"{where} is cut short")
        label = struct.unpack_from("<f", record, _HEADER.size)[0]
    return _number(label, where)


def _number(value: Any, where: str) -> int:
    try:
        number = float(value)
        if number < 0 or not number.is_integer():
            raise ValueError
    except (ValueError, OverflowError):
        raise Problem(f"{where} has the label {str(value)[:40]!r}: a class is a whole number from 0") from None
    return int(number)


def _numbered(labels: list[int], what: str, count: int | None, like: Like | None) -> tuple[list[str], Tensor]:
    """The classes, and each image's; `count` classes if that is said, also such as have no image."""
    if count and not like:
        if max(labels) >= count:
            raise Problem(f"{what} has the class {max(labels)}, but num_classes is {count}: classes are 0 to {count - 1}")
        like = ([str(number) for number in range(count)], (0, 0, 0))
    return _images.numbered(labels, what, like)
