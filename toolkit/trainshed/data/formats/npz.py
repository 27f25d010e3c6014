"""Arrays of numpy: the rows of an .npy file, or of all arrays of an .npz file. Pickles are never loaded.

Rows are read and unpacked a block at a time. In Fortran's order they do not lie together: such an
array is mapped into memory, or unpacked as a whole. Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import errno
import lzma
import math
import os
import struct
import zipfile
import zlib
from itertools import islice

from trainshed.base.record import Record

from .errors import DataError, broken
from .format import BLOCK, Counted, Format, changed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

_LOCAL = struct.Struct("<4s22xHH")  # of a zip file's local header: its magic, length of the name, of the extra field
# What zipfile raises about damaged archives.
_UNZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error, lzma.LZMAError)
_PK = b"PK\x03\x04"
_NPY = b"\x93NUMPY"


class _Layout(Record):
    """How an array lies: its shape, type and order, and where its first element is, from the array's beginning."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: Any
    offset: int

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * int(self.dtype.itemsize)

    @property
    def size(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    @property
    def is_scattered(self) -> bool:
        """Whether the elements of a row do not lie together."""
        return self.fortran and len(self.shape) > 1


class Npy(Format):
    """The rows of one array: arrays of one dimension less, or scalars of numpy."""

    name = "npy"
    content_types = ("application/x-npy",)
    endings = (".npy",)
    needs = ("numpy",)

    def count(self, path: str) -> Counted:
        """Reads the header alone."""
        with open(path, "rb") as file:
            return Counted(_rows(path, _layout(path, file)))

    def read(self, path: str, first: int, counted: Counted) -> Iterator[Any]:
        """Reads a block of rows at a time."""
        with open(path, "rb", buffering=0) as file:
            layout = _layout(path, file)
            here = os.fstat(file.fileno()).st_size - layout.offset
        if _rows(path, layout) != counted.records:
            raise changed(path, counted, layout.shape[0])
        if here != layout.size:
            raise broken(path, f"has {here} bytes of elements, and its header tells of {layout.size}")
        yield from _plain(path, layout, layout.offset, first)

    def batch(self, records: Any) -> Any:
        """Stacks the rows."""
        import numpy as np

        return np.stack(records)

    def recognizes(self, path: str, beginning: bytes) -> bool:
        """By its magic bytes."""
        return beginning.startswith(_NPY)


class Npz(Format):
    """Rows by array: {"x": ..., "y": ...}. All arrays have the same number of rows."""

    name = "npz"
    content_types = ("application/x-npz",)
    endings = (".npz",)
    needs = ("numpy",)

    def count(self, path: str) -> Counted:
        """Reads the headers of the arrays alone."""
        with _archive(path) as archive:
            lengths = {name: _rows(path, layout, name) for name, layout in _layouts(path, archive).items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name!r} has {rows}" for name, rows in lengths.items())
            raise DataError(f"{path}: its arrays have different numbers of rows: {told}", hint="write arrays of one length")
        return Counted(next(iter(lengths.values())))

    def read(self, path: str, first: int, counted: Counted) -> Iterator[dict[str, Any]]:
        """Reads a block of rows at a time of each array."""
        found = self.count(path)
        if found.records != counted.records:
            raise changed(path, counted, found.records)
        with _archive(path) as archive:
            layouts = _layouts(path, archive)
            rows = [_one(path, archive, name, layout, first) for name, layout in layouts.items()]
            try:
                for values in islice(zip(*rows, strict=True), max(0, counted.records - first)):
                    yield dict(zip(layouts, values, strict=True))
            except _UNZIP as error:
                raise broken(path, f"cannot be unpacked: {error}") from error

    def batch(self, records: Any) -> dict[str, Any]:
        """Stacks the rows of each array."""
        import numpy as np

        return {name: np.stack([record[name] for record in records]) for name in records[0]}

    def recognizes(self, path: str, beginning: bytes) -> bool:
        """By zip's magic bytes, and the name of the first array."""
        if len(beginning) < _LOCAL.size:
            return False
        magic, name, _ = _LOCAL.unpack_from(beginning)
        return magic == _PK and beginning[_LOCAL.size : _LOCAL.size + name].endswith(b".npy")


def _archive(path: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (*_UNZIP, ValueError) as error:
        raise broken(path, f"is not a whole .npz file: {error}") from error


def _layouts(path: str, archive: zipfile.ZipFile) -> dict[str, _Layout]:
    """The arrays by their names; what else lies in the archive is refused."""
    found: dict[str, _Layout] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename or name in found:
            raise broken(path, f"has a file {info.filename!r} that is not an array, or is there twice")
        try:
            with archive.open(info) as file:
                layout = _layout(path, file, name)
        except (*_UNZIP, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of a place before the file's begin
                raise
            raise broken(path, f"has an array {name!r} that cannot be unpacked: {error}") from error
        if layout.offset + layout.size != info.file_size:
            here = info.file_size - layout.offset
            raise broken(path, f"has {here} bytes of elements in {name!r}, and its header tells of {layout.size}")
        found[name] = layout
    if not found:
        raise broken(path, "has no arrays")
    return found


def _layout(path: str, file: IO[bytes], name: str = "") -> _Layout:
    """The header of an array, which `file` stands at."""
    from numpy.lib import format as npy

    of = f" of its array {name!r}" if name else ""
    try:
        version = npy.read_magic(file)
        if version > (2, 0):
            raise ValueError(f"version {version} of the format, which has fields with names of other alphabets")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError):  # of what it is read from
        raise
    except Exception as error:  # it is parsed as Python, whose parsers raise all kinds
        raise broken(path, f"has a header{of} that cannot be read: {error}") from error
    if dtype.hasobject:
        raise DataError(
            f"{path} has elements{of} that are Python objects", hint="pickles are not loaded: write numbers or text"
        )
    return _Layout(tuple(shape), fortran, dtype, file.tell())


def _rows(path: str, layout: _Layout, name: str = "") -> int:
    if not layout.shape:
        array = f"its array {name!r}" if name else "its array"
        raise DataError(
            f"{path}: {array} is a single number", hint="a row is a record: write arrays of one dimension or more"
        )
    return layout.shape[0]


def _one(path: str, archive: zipfile.ZipFile, name: str, layout: _Layout, first: int) -> Iterator[Any]:
    """The rows of one array from `first` on."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
        with open(path, "rb") as file:
            file.seek(info.header_offset)
            header = file.read(_LOCAL.size)
            magic, name_size, extra = _LOCAL.unpack(header) if len(header) == _LOCAL.size else (b"", 0, 0)
            if magic != _PK:
                raise broken(path, f"has a damaged header in front of {name!r}")
            begin = info.header_offset + _LOCAL.size + name_size + extra + layout.offset
        yield from _plain(path, layout, begin, first)
        return
    with archive.open(info) as file:
        if layout.is_scattered:
            import numpy as np

            yield from _copies(np.lib.format.read_array(file, allow_pickle=False), first)
            return
        skip = layout.offset + min(first, layout.shape[0]) * layout.row
        while skip:
            skip -= len(file.read(min(skip, BLOCK))) or skip
        yield from _blocks(path, file, layout, first)


def _plain(path: str, layout: _Layout, offset: int, first: int) -> Iterator[Any]:
    """The rows of an array that lies in a file as it is."""
    if layout.is_scattered and layout.size:  # nothing cannot be mapped
        import numpy as np

        yield from _copies(np.memmap(path, layout.dtype, "r", offset, layout.shape, "F").view(np.ndarray), first)
        return
    with open(path, "rb", buffering=0) as file:
        file.seek(offset + min(first, layout.shape[0]) * layout.row)
        yield from _blocks(path, file, layout, first)


def _blocks(path: str, file: IO[bytes], layout: _Layout, first: int) -> Iterator[Any]:
    """The rows from `first` on, at which the file stands."""
    import numpy as np

    count, *shape = layout.shape
    some = max(1, BLOCK // max(1, layout.row))
    for at in range(first, count, some):
        rows = min(some, count - at)
        data = b""
        while missing := rows * layout.row - len(data):
            more = file.read(missing)
            if not more:
                raise broken(path, f"ends in row {at + len(data) // layout.row}")
            data = data + more if data else more
        yield from _copies(np.ndarray((rows, *shape), layout.dtype, data), 0)


def _copies(array: Any, first: int) -> Iterator[Any]:
    for number in range(first, len(array)):
        yield array[number].copy()
